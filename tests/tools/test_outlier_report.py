"""Outliers out of records, the tokens of goal and history, gradient x input, and the whole command."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import decoder, layers
from model import params as model_params
from model.config import ModelConfig
from rl import records
from rl.credit.outliers import OutlierSettings
from sharding.mesh import make_mesh
from tests.e2e.conftest import cache  # noqa: F401  a fixture
from tests.e2e.tiny import ROOT, TINY, environment
from tests.rl.episodes import episode
from tools import outlier_report, reliance

SETTINGS = OutlierSettings(localisation="normalised", fence=1.5, singleton="raw", ddof=1, eps=1e-6)


def record(number: int, entropy: float, advantage: float, **more: Any) -> dict[str, Any]:
    """A response alone in its state, so that H_n is its entropy."""
    return {
        "group": 0, "trajectory": number // 2, "turn": number % 2, "entropy": entropy, "surprisal": 0.0, "alpha": 1.0,
        "advantage_before": advantage, "advantage_after": 9.0, "reward": 0.0, "stop": "stop", "valid": True,
        "anchor": f"state {number}",
    } | more  # fmt: skip


# Quartiles 101.25 and 105.75, so fences 94.5 and 112.5.
ROWS = [
    record(n, entropy, advantage)
    for n, (entropy, advantage) in enumerate(
        [(100, 1), (101, 1), (102, 1), (60, -1), (103, 0), (104, 0), (105, 0), (140, -3), (106, 1), (107, 0)]
    )
]


# Records


def test_outliers_of_records() -> None:
    steps = outlier_report.from_records(ROWS, settings=SETTINGS)
    assert np.flatnonzero(steps.outlier).tolist() == [3, 7]
    np.testing.assert_allclose(steps.extremity[[3, 7]], [60 - 94.5, 140 - 112.5])
    found = outlier_report.statistics(steps)
    assert (found["responses"], found["episodes"]) == (10, 5)
    assert (found["outliers"], found["low"], found["high"]) == (2, 1, 1)
    share, low, high = found["outlier_share"]
    assert share == pytest.approx(0.2) and low == 0 and share < high <= 0.5
    assert found["advantage_outlier"][0] == -2 and found["advantage_inlier"][0] == 0.5
    assert all(math.isnan(x) for x in found["aware_outlier"]), "this run recorded none"


def test_step_groups_are_the_recorded_ones_or_draw_and_anchor() -> None:
    same = [record(n, entropy, 0, anchor="one") for n, entropy in enumerate((1, 2, 3))]
    other = [{**row, "group": 1, "entropy": row["entropy"] + 50} for row in same]
    labels = [{**row, "step_group": n} for n, row in enumerate(same + other)]
    seen = []

    def spy(entropy: np.ndarray, group: np.ndarray, *, settings: Any) -> Any:
        seen.append(group.tolist())
        return mark(entropy, group, settings=settings)

    mark = outlier_report.mark
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outlier_report, "mark", spy)
        outlier_report.from_records(same + other, settings=SETTINGS)
        outlier_report.from_records(labels, settings=SETTINGS)
    assert seen == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5]]
    normalised, *_ = mark(np.array([1.0, 2, 3, 7]), np.array([0, 0, 0, 3]), settings=SETTINGS)
    np.testing.assert_allclose(normalised, [-1, 0, 1, 7], atol=1e-5)


def test_recorded_r_ta_counts_where_the_terms_acted() -> None:
    acted = [{**row, "aware": 0.0, "independent": 0.0} for row in ROWS]
    acted[3] |= {"aware": 0.25, "independent": 0.5}  # row 7 was left out of a full block
    found = outlier_report.statistics(outlier_report.from_records(acted, settings=SETTINGS))
    assert found["aware_outlier"][0] == 0.25


def test_an_entropy_that_is_not_finite_is_no_outlier() -> None:
    rows = [*ROWS, record(10, 0, 5) | {"entropy": None}]
    steps = outlier_report.from_records(rows, settings=SETTINGS)
    assert np.flatnonzero(steps.outlier).tolist() == [3, 7]


def test_settings_are_the_runs_own_where_it_locates_outliers() -> None:
    section = dict(localisation="shannon", fence=3.0, singleton="inlier", ddof=0, eps=1e-3)
    own = {"credit": {"outliers": {"enabled": True, **section}}}
    off = {"credit": {"outliers": {"enabled": False, **section}}}
    assert outlier_report.settings_of(own) == OutlierSettings(**section)
    assert outlier_report.settings_of(off) == outlier_report.settings_of({"credit": {}}) == SETTINGS


def test_intervals_resample_episodes() -> None:
    source = np.random.default_rng(0)
    episodes = np.repeat(np.arange(100), 5)
    values = np.repeat(source.normal(size=100), 5)  # one value an episode: 100 numbers, not 500
    everything = np.ones(500, bool)
    mean, low, high = outlier_report.interval(values, everything, episodes)
    assert mean == pytest.approx(values.mean())
    assert high - low == pytest.approx(4 * values.std() / 10, rel=0.15)
    assert (mean, low, high) == outlier_report.interval(values, everything, episodes)
    alone = outlier_report.interval(values, episodes == 3, episodes)
    assert alone[0] == pytest.approx(values[15]) and math.isnan(alone[1])
    assert all(math.isnan(x) for x in outlier_report.interval(values, ~everything, episodes))


def test_iterations_are_put_together_without_mixing_episodes() -> None:
    steps = outlier_report.from_records(ROWS, settings=SETTINGS)
    found = dict.fromkeys(range(1, 21), steps)
    periods = outlier_report.periods(found)
    assert list(periods) == ["1-20", "1-2", "19-20"]
    assert len(np.unique(periods["1-20"].episode)) == 100
    assert outlier_report.statistics(periods["1-2"])["outliers"] == 4
    assert list(outlier_report.windows(found)) == [1.5 + 2 * n for n in range(10)]
    assert list(outlier_report.periods({3: steps})) == ["3"]


def test_steps_by_name_and_number() -> None:
    choose = outlier_report.chosen_steps
    assert choose([10, 30, 40], "first,last") == [10, 40]
    assert choose([10, 30, 40], "all") == [10, 30, 40]
    assert choose([10, 30, 40], "30, last") == [30, 40]
    assert choose([10], "first,last") == [10]
    for text in ("20", "best", ""):
        with pytest.raises(ValueError):
            choose([10, 30], text)


# Goal and history


def test_goal_and_history_of_a_step_context() -> None:
    context, blind = [1, 2, 70, 71, 72, 5, 6, 7, 80, 81, 3], [1, 2, 5, 6, 7, 3]
    marks = reliance.trajectory_tokens(context, blind, last=len(context), opening=2)
    assert np.array(context)[marks].tolist() == [70, 71, 72, 80, 81]


def test_goal_and_history_of_a_conversation() -> None:
    """System 1 2; a user turn opens with 9 and ends with 3; 60 is the goal, 40 a response."""
    context = [1, 2, 9, 50, 31, 60, 3, 40, 9, 50, 51, 60, 3]
    blind = [1, 2, 9, 50, 51, 3]
    marks = reliance.trajectory_tokens(context, blind, last=5, opening=2)
    assert np.flatnonzero(marks).tolist() == [2, 3, 4, 5, 6, 7, 11]
    first = reliance.trajectory_tokens(context[:7], [1, 2, 9, 50, 31, 3], last=7, opening=2)
    assert np.flatnonzero(first).tolist() == [5]


class Words:
    """A tokenizer whose prompt is the system's ids, 9, the user's ids, 3."""

    def prompt(self, system: str, user: str) -> list[int]:
        return [*map(int, system.split()), 9, *map(int, user.split()), 3]


def test_responses_have_the_contexts_that_the_sampler_had_read() -> None:
    played = [episode(0, 0, [(3, 2), (4, 1)]), episode(0, 1, [(2, 2)], failed="died")]
    first, second = played[0].turns
    first.context_ids, first.system, first.blind = [1, 2, 9, 50, 3], "1 2", "50"
    second.context_ids, second.system, second.blind = [9, 30, 31, 3], "1 2", "30"
    conversation = reliance.responses(played, kind="conversation", tokenizer=Words())
    assert [one.context for one in conversation] == [
        first.context_ids,
        [*first.context_ids, *first.response_ids, *second.context_ids],
    ]
    assert conversation[1].blind == [1, 2, 9, 30, 3]
    assert np.flatnonzero(conversation[1].trajectory).tolist() == [3, 4, 5, 6, 9]
    step = reliance.responses(played, kind="step", tokenizer=Words())
    assert step[1].context == second.context_ids and step[1].ids == second.response_ids


# Attribution

MODEL = ModelConfig(
    vocab_size=40, width=16, layers=2, heads=2, kv_heads=1, head_size=8, hidden=32, tied_head=False
)
SCALE = {"temperature": 0.8, "block": 16}
FOUND = [
    reliance.Response([1, 2, 3, 4, 5], [1, 2, 5], [6, 7], np.array([0, 0, 1, 1, 0], bool)),
    reliance.Response([11, 12, 13], [12, 13], [14, 15, 16], np.array([1, 0, 0], bool)),
]


@functools.cache
def weights(config: ModelConfig = MODEL) -> Any:
    """Far enough from uniform that every context matters."""
    tree = model_params.init(jax.random.key(0), config)
    layers = jax.tree.map(lambda x: 3 * x if x.ndim > 2 else x, tree.pop("layers"))
    return {"layers": layers, **jax.tree.map(lambda x: 20 * x if x.ndim == 2 else x, tree)}


@jax.jit
def distributions(params: Any, ids: Any) -> Any:
    """[T, V] log-probabilities of the id after each."""
    places = jnp.arange(len(ids))[None]
    hidden = decoder.hidden_states(params, ids[None], places, jnp.ones_like(places), config=MODEL)
    return jax.nn.log_softmax(layers.logits(params, hidden[0]) / SCALE["temperature"])


def predicted(params: Any, context: list[int], ids: list[int]) -> np.ndarray:
    """[len(ids), V] log-probabilities where each of `ids` stands."""
    return np.asarray(distributions(params, jnp.array(context + ids)))[len(context) - 1 : -1]


def products(params: Any, config: ModelConfig) -> tuple[np.ndarray, np.ndarray]:
    full, _, response, _ = reliance._block(FOUND, 3, 8)
    out, *_ = jax.jit(lambda p, f, r: reliance.attribute(p, f, r, config=config, tail=4, **SCALE))(
        params, reliance.Side(*map(jnp.asarray, full)), jnp.asarray(response)
    )
    return np.asarray(out), full.tokens


@pytest.mark.slow
def test_gradient_times_input_is_the_slope_along_the_embedding() -> None:
    """Every id occurs once and the head is its own, so scaling an id's row scales one input embedding."""
    params = weights()
    out, tokens = products(params, MODEL)
    h = 1e-2
    for row, one in enumerate(FOUND):
        for id_ in one.context:
            up, down = (
                predicted(
                    {**params, "embed": {"weight": params["embed"]["weight"].at[id_].multiply(1 + s * h)}},
                    one.context,
                    one.ids,
                )[np.arange(len(one.ids)), one.ids].sum()
                for s in (1, -1)
            )
            (column,) = np.flatnonzero(tokens[row] == id_)
            assert out[row, column] == pytest.approx(abs(up - down) / (2 * h), rel=2e-2, abs=2e-4)
    assert np.sum(out[:2] > 1e-2) >= 8, "far above the error of differences"
    assert not out[:, 0][tokens[:, 0] == 0].any() and not out[2].any(), "padding does not"


@pytest.mark.slow
def test_a_tied_head_is_held_fixed() -> None:
    tied = dataclasses.replace(MODEL, tied_head=True)
    params = weights(tied)
    own = {**params, "head": {"weight": params["embed"]["weight"].T}}
    np.testing.assert_allclose(products(params, tied)[0], products(own, MODEL)[0], rtol=1e-4, atol=1e-5)


@functools.cache
def meter(buckets: tuple[int, ...], tokens: int, first_k: int = 0) -> reliance.Meter:
    settings = SimpleNamespace(**SCALE, first_k=first_k, remat="none")
    learner = SimpleNamespace(
        config=MODEL, settings=settings, mesh=make_mesh(1, 1, 1, devices=jax.devices()[:1]), row_multiple=1
    )
    return reliance.Meter(learner, buckets=buckets, tokens=tokens, tail=4)


@pytest.mark.slow
def test_the_numbers_of_a_response() -> None:
    params = weights()
    found = meter((8,), 16)(params, FOUND)
    out, _ = products(params, MODEL)
    np.testing.assert_allclose(found.held, [2 / 5, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(
        found.attribution, [out[0, 3:5].sum() / out[0, 1:6].sum(), out[1, 2] / out[1, 2:5].sum()], rtol=1e-5
    )

    one = FOUND[1]
    p, q = (predicted(params, context, one.ids) for context in (one.context, one.blind))
    assert found.kl[1] == pytest.approx(np.mean(np.sum(np.exp(p) * (p - q), -1)), rel=1e-3)
    assert found.entropy[1] == pytest.approx(np.mean(-np.sum(np.exp(p) * p, -1)), rel=1e-4)
    short = meter((8,), 16, first_k=1)(params, FOUND)
    assert short.entropy[1] == pytest.approx(-np.sum(np.exp(p[0]) * p[0]), rel=1e-4)


@pytest.mark.slow
def test_blocks_do_not_change_the_numbers() -> None:
    params, many = weights(), [FOUND[n] for n in (0, 1, 1, 0, 1)]
    counts: list[int] = []
    one, other = meter((8,), 16)(params, many), meter((6, 12), 12)(params, many, advance=counts.append)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert sum(counts) == 5 and one.kl[0] == one.kl[3] != one.kl[1]
    with pytest.raises(ValueError, match=r"7 tokens exceeds learner\.row_buckets=\(6,\)"):
        meter((6,), 12)(params, many)


# The command


def a_run(path: Path, *, responses: bool = True) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"credit": {}, "eval": {"splits": ["valid_seen"]}}))
    for iteration in range(1, 4) if responses else ():
        records.write_responses(path / "responses" / f"{iteration:05d}.jsonl.gz", ROWS)
    return path


def test_the_records_of_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [a_run(tmp_path / name) for name in ("one", "two")]
    before = sorted(runs[0].rglob("*"))
    words = [f"--workdir={run}" for run in runs]
    assert outlier_report.main([*words, "--games=0", f"--out={tmp_path / 'out'}"]) == 0
    assert sorted(runs[0].rglob("*")) == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "records.csv",
        "outlier_report.md",
        "outlier_report.png",
    }
    with (tmp_path / "out" / "records.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["iteration"]) for row in rows] == [(r, i) for r in ("one", "two") for i in "123"]
    assert (rows[0]["outlier_share"], rows[0]["advantage_outlier"], rows[0]["aware_outlier"]) == (
        "0.2",
        "-2.0",
        "",
    )
    text = (tmp_path / "out" / "outlier_report.md").read_text()
    assert "| one | 1-3 | 30 | 20.0 [" in text and "| 50 / 50 | -2 [" in text
    assert "Training records" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workdir=nothing"], "holds no run"),
        (["--workdir=silent"], "no response records"),
        (["--workdir=whole"], "has no checkpoint"),
        (["--workdir=whole", "--split=test"], "unknown split 'test'; known: train, valid_seen"),
        (["--workdir=torn", "--games=0"], "00001.jsonl.gz cannot be read"),
    ],
)
def test_what_cannot_be_reported(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    a_run(tmp_path / "silent", responses=False)
    torn = a_run(tmp_path / "torn") / "responses" / "00001.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:-20])
    a_run(tmp_path / "whole")
    before = sorted(tmp_path.rglob("*"))
    assert outlier_report.main(words) == 1
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("context", ["step", "conversation"])
def test_a_run_from_training_to_report(context: str, cache: Path, tmp_path: Path) -> None:  # noqa: F811
    run, out = tmp_path / "run", tmp_path / "out"
    train = [
        *("main.py", "--config=configs/alfworld_grpo.py:quick", f"--workdir={run}", *TINY),
        *("--config.train.iterations=2", "--config.credit.outliers.enabled=True"),
        f"--config.rollout.context={context}",
    ]
    report = ["-m", "tools.outlier_report", f"--workdir={run}", "--games=2", "--members=3", f"--out={out}"]
    for command in (train, report):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment(cache),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rows = records.read_lines(run / "responses" / "00002.jsonl.gz")
    steps = outlier_report.from_records(rows, settings=SETTINGS)
    assert steps.outlier.tolist() == [row["outlier"] for row in rows], "the mask that training saw"
    with (out / "responses.csv").open(newline="") as file:
        tested = list(csv.DictReader(file))
    assert len({row["step"] for row in tested}) == 2 and len({row["episode"] for row in tested}) == 6
    assert all(float(row["kl"]) > 0 and 0 < float(row["attribution"]) < 1 for row in tested)
    with (out / "checkpoints.csv").open(newline="") as file:
        (first, _) = csv.DictReader(file)
    mine = [row for row in tested if row["step"] == first["step"]]
    assert float(first["kl_all"]) == pytest.approx(np.mean([float(row["kl"]) for row in mine]))
