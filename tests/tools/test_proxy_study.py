"""The statistics of the proxy study, its contexts, its sampler loop, its results and its errors."""

from __future__ import annotations

import contextlib
import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from configs import arguments, common
from model.config import ModelConfig
from rl import builder
from rl.metrics import pearson
from rl.progress import Progress
from sharding.mesh import make_mesh
from tests.rl.episodes import episode
from tools import proxy_plot, proxy_study

TINY = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_size": 8, "hidden": 16}


def test_signs_are_none_where_only_rounding_is_left() -> None:
    alpha, relative = np.array([1.5, 0.5, 1 + 1e-7, 1.2, 1.0]), np.array([1e-7, -0.1, 3.0, -2.0, 0.0])
    one, two = proxy_study.signs(alpha, relative, np.full(5, 2.0))
    assert one.tolist() == [1, -1, 0, 1, 0] and two.tolist() == [0, -1, 1, -1, 0]
    assert proxy_study.agreement(one, two) == 0.5
    assert math.isnan(proxy_study.agreement(np.zeros(2), np.ones(2)))


def test_chance_is_the_agreement_of_independent_signs() -> None:
    one, two = np.array([1, 1, -1, -1, 0, 1]), np.array([1, 1, 1, -1, 1, 0])
    assert proxy_study.chance(one, two) == pytest.approx(0.5 * 0.75 + 0.5 * 0.25)
    assert proxy_study.chance(np.ones(4), np.ones(4)) == 1.0
    assert math.isnan(proxy_study.chance(np.zeros(2), np.ones(2)))


def test_bootstrap_is_seeded_and_covers() -> None:
    source = np.random.default_rng(0)
    one = source.normal(size=400)
    two = one + source.normal(size=400)  # r = 0.707
    low, high = proxy_study.bootstrap(one, two, pearson)
    assert (low, high) == proxy_study.bootstrap(one, two, pearson)
    assert low < 0.707 < high and high - low < 0.15
    assert all(math.isnan(x) for x in proxy_study.bootstrap(np.ones(3), np.ones(3), pearson))


def test_bootstrap_draws_the_responses_of_a_state_together() -> None:
    one = np.array([[1.0, 1.0], [-1.0, -1.0]])
    two = np.array([[1.0, 1.0], [1.0, 1.0]])  # one state agrees, the other does not
    seen: set[float] = set()

    def recorded(a: np.ndarray, b: np.ndarray) -> float:
        seen.add(value := proxy_study.agreement(a, b))
        return value

    assert proxy_study.bootstrap(one, two, recorded, rounds=50) == (0.0, 1.0)
    assert seen == {0.0, 0.5, 1.0}


def test_contexts_are_what_the_sampler_had_read() -> None:
    played = [
        episode(0, 0, [(3, 2), (1, 1)]),
        episode(0, 1, [(2, 2)], failed="died"),
        episode(0, 2, [(1, 4)]),
    ]
    first, second = played[0].turns
    grown = [*first.context_ids, *first.response_ids, *second.context_ids]
    only = played[2].turns[0]
    found = proxy_study.contexts(played, "conversation")
    assert [ids for ids, _ in found] == [first.context_ids, grown, only.context_ids]
    assert [s for _, s in found] == pytest.approx([-sum(turn.logp) for turn in (first, second, only)])
    assert proxy_study.contexts(played, "step")[1][0] == second.context_ids


class Sampler:
    """Two slots; every token costs half a nat; slot 1 stops with its first token, slot 0 after a chunk of two."""

    slots = 2

    def extend(self, params, rows, prompts, seeds, *, restart):
        assert all(restart) and all(prompt == [1, 2] for prompt in prompts)
        size = len(rows)
        return SimpleNamespace(
            tokens=np.full(size, 7, np.int32),
            logp=np.full(size, -0.5, np.float32),
            stopped=np.array([False, True])[:size],
        )

    def decode(self, params, active, limits):
        assert active.tolist() == [True, False]
        return SimpleNamespace(
            tokens=np.array([[8, 9, -1], [-1, -1, -1]]),
            counts=np.array([2, 0]),
            logp=np.full((2, 3), -0.5),
            stopped=np.array([True, False]),
            full=np.zeros(2, bool),
        )


def test_sample_keeps_the_tokens_that_were_drawn() -> None:
    made = proxy_study.sample(Sampler(), None, [1, 2], count=3, limit=8, seed=0)
    assert [turn.response_ids for turn in made] == [[7, 8, 9], [7], [7, 8, 9]]
    assert [turn.logp for turn in made] == [[-0.5] * 3, [-0.5], [-0.5] * 3]
    assert all(turn.context_ids == [1, 2] for turn in made)


def test_compare_counts_what_has_no_sign() -> None:
    """One guarded response, and one tie that rounding blurs: S is a sum of float32, H_resp a mean."""
    alpha, surprisal = np.array([1.5, 0.5, 1.0, 1.25]), np.array([1.0, 3.0, 1.0, 2.0 + 1e-7])
    result = proxy_study.compare(alpha, surprisal, np.full(4, 2.0), seed=0)
    assert (result["points"], result["silent"], result["ties"], result["signed_states"]) == (4, 1, 1, 2)
    assert result["agreement"] == 1.0 and result["chance"] == 0.5
    # alpha - 1 = .5 -.5 0 .25 and -(S - H) = 1 -1 1 0: covariance 0.9375, squares 0.546875 and 2.75
    assert result["pearson"] == pytest.approx(0.9375 / math.sqrt(0.546875 * 2.75))


def test_compare_takes_the_entropy_of_each_state() -> None:
    alpha = np.array([[1.5, 0.5], [0.5, 1.5]])
    surprisal = np.array([[1.0, 3.0], [7.0, 5.0]])
    result = proxy_study.compare(alpha, surprisal, surprisal.mean(1), seed=0)
    assert result["minus_relative_surprisal"] == [[1.0, -1.0], [-1.0, 1.0]]
    assert (
        result["points"] == 4
        and result["signed_states"] == 2
        and result["pearson"] == pytest.approx(1)
        and result["agreement"] == 1.0
    )


class Scored:
    """A learner whose surprisals are those of `first_k` tokens, and whose alphas count the responses."""

    row_multiple = 1

    def place(self, batch):
        return batch

    def score(self, state, batch):
        return SimpleNamespace(surprisal=np.full(batch.responses.valid.shape, 77.0), batch=batch)

    def credit(self, state, scored, iteration):
        return state, SimpleNamespace(alpha=1 + np.arange(scored.surprisal.size))


def parts_of(play) -> SimpleNamespace:
    """Parts that play with `play(draw)`."""
    return SimpleNamespace(
        learner=Scored(),
        state=SimpleNamespace(params=None),
        iteration=1,
        tasks={"train": ["a", "b"], "valid_seen": ["c", "d"]},
        rollout=SimpleNamespace(collect=lambda params, draws, *, on_episode: [play(draw) for draw in draws]),
        progress=Progress(1, console=Console(file=io.StringIO())),
    )


def test_a_state_has_the_surprisal_of_the_whole_response() -> None:
    """Whatever tokens AEM reads: the sums of the sampler's -logp, not a mean over the first tokens times the length."""
    config = common.base()
    config.rollout.group_size, config.credit.aem.first_k = 2, 1
    played: dict[float, int] = {}

    def play(draw):
        made = episode(draw.group, draw.member, [(3, 4)])
        played[-sum(made.turns[0].logp)] = 2 * draw.group + draw.member
        return made

    parts = parts_of(play)
    found = proxy_study.states(config, parts, parts.learner, split="valid_seen", count=9, seed=0)
    assert len(found) == 4
    assert {state.surprisal: state.alpha - 1 for state in found} == pytest.approx(played)


def test_nothing_played_is_said() -> None:
    parts = parts_of(lambda draw: episode(draw.group, draw.member, [(3, 4)], failed="died"))
    with pytest.raises(ValueError, match="split 'train' gave 0 responses"):
        proxy_study.states(common.base(), parts, parts.learner, split="train", count=9, seed=0)


def test_alpha_comes_from_the_config_of_the_run() -> None:
    config = common.base()
    arguments.overlay(
        config, {"credit.aem.threshold": 0.25, "credit.aem.lam": 2.0, "credit.aem.proxy": "mix"}
    )
    model = ModelConfig(vocab_size=32, **TINY)
    learner = builder._learner(arguments.lock(config), model, make_mesh(data=1, fsdp=1, tensor=-1))
    assert learner.settings.credit.aem is None
    made = proxy_study.crediting(learner, config.credit, noise_variance=0.5).settings.credit
    assert made.aem is not None and made.lam == 2.0
    assert (made.aem.threshold, made.aem.proxy, made.aem.noise_variance) == (0.25, "mix", 0.5)
    assert not config.credit.aem.enabled, "the run's config stays as it is"


def result(alpha: np.ndarray) -> dict:
    """A result in which one of the responses is far out."""
    source = np.random.default_rng(0)
    surprisal = source.exponential(1.0, alpha.shape)
    surprisal.flat[0] = 40.0
    compared = proxy_study.compare(alpha, surprisal, np.ones(len(alpha)), seed=0)
    return {"states": len(alpha), "responses": 8, "split": "valid_seen", "iteration": 3} | {
        "played": compared,
        "sampled": compared,
    }


def test_table_and_picture(tmp_path) -> None:
    made = result(1 + np.linspace(-0.5, 0.5, 20))
    text = proxy_plot.table(made)
    assert "20 states of split valid_seen, 8 responses each, iteration 3" in text
    assert text.count(f"| 20 | {made['played']['pearson']:.2f} [") == 2
    proxy_plot.draw(made, tmp_path / "a.png", title="run")
    silent = result(np.ones(20))  # AEM's guard everywhere: no number is made up
    assert "| 20 | none | none | none | 20 | 0 | 0 |" in proxy_plot.table(silent)
    proxy_plot.draw(silent, tmp_path / "b.png", title="run")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))


def test_outliers_do_not_squeeze_the_points(tmp_path, monkeypatch) -> None:
    figures = []
    monkeypatch.setattr(proxy_plot.plt, "close", figures.append)
    proxy_plot.draw(result(1 + np.linspace(-0.5, 0.5, 20)), tmp_path / "a.png", title="run")
    monkeypatch.undo()
    axes = figures[0].axes[0]
    low, near, high = (axes.transData.transform((0, y))[1] for y in (-39.0, -1.0, 1.0))
    proxy_plot.plt.close(figures[0])
    assert high - near > (near - low) / 2, "what lies within a nat has its share of the axis"
    assert "logarithmic" in axes.get_ylabel()


@pytest.fixture
def opened(monkeypatch):
    """A run that is open without being there."""
    seen: dict = {}

    @contextlib.contextmanager
    def reopen(workdir):
        yield None, SimpleNamespace(tasks={"train": ["a"], "valid_seen": ["b"]})

    def study(config, parts, **settings):
        seen.update(settings)
        return result(np.ones(4)) | seen

    monkeypatch.setattr(proxy_study, "reopen", reopen)
    monkeypatch.setattr(proxy_study, "study", study)
    return seen


def test_held_out_states_by_default(opened, tmp_path, capsys) -> None:
    assert proxy_study.main([f"--workdir={tmp_path}"]) == 0
    assert opened["split"] == "valid_seen"
    held = json.loads((tmp_path / "proxy_study" / "proxy_study.json").read_text(), parse_constant=pytest.fail)
    assert held["played"]["pearson"] is None and held["played"]["silent"] == 4
    assert proxy_study.main([f"--workdir={tmp_path}", "--split=train", f"--out={tmp_path / 'out'}"]) == 0
    assert opened["split"] == "train" and (tmp_path / "out" / "proxy_study.png").is_file()
    assert proxy_study.main([f"--workdir={tmp_path}", "--split=test"]) == 1
    assert "unknown split 'test'; known: train, valid_seen" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError, ValueError, OSError])
def test_errors_are_a_line(opened, tmp_path, monkeypatch, capsys, error) -> None:
    def broken(*args, **settings):
        raise error("the workers died")

    monkeypatch.setattr(proxy_study, "study", broken)
    assert proxy_study.main([f"--workdir={tmp_path}"]) == 1
    assert "error: the workers died" in capsys.readouterr().err
    monkeypatch.setenv("AGENTROPY_TRACEBACK", "1")
    with pytest.raises(error):
        proxy_study.main([f"--workdir={tmp_path}"])


def test_a_directory_without_a_run_is_refused(tmp_path, capsys) -> None:
    assert proxy_study.main([f"--workdir={tmp_path}"]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_is_refused(tmp_path, capsys) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert proxy_study.main([f"--workdir={tmp_path}"]) == 1
    assert "no checkpoint" in capsys.readouterr().err
