"""Metrics: intervals, means of sums, and a file in which every iteration stands once."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rl.metrics import MetricsWriter, add, fold, pearson, read, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # R. G. Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (0, 0, 0, 1),
    ],
)
def test_wilson(successes: int, n: int, low: float, high: float) -> None:
    np.testing.assert_allclose(wilson(successes, n), (low, high), atol=5e-5)


def test_wilson_bounds_are_the_rates_at_which_the_score_test_rejects() -> None:
    for end in wilson(13, 40):
        z = (13 / 40 - end) / math.sqrt(end * (1 - end) / 40)
        np.testing.assert_allclose(abs(z), 1.959964, rtol=1e-6)


def test_wilson_covers_its_rate() -> None:
    for n in (1, 7, 200):
        for successes in range(n + 1):
            low, high = wilson(successes, n)
            assert 0 <= low <= successes / n <= high <= 1
    with pytest.raises(ValueError, match="successes=3"):
        wilson(3, 2)


def test_fold() -> None:
    out = fold(add({"a/x": (1.0, 2.0), "a/y": (3, 4)}, {"a/x": (2.0, 4.0), "a/z": (0.0, 0.0)}))
    assert out["a/x_mean"] == 0.5
    assert out["a/y_mean"] == 0.75
    assert math.isnan(out["a/z_mean"])


def test_rows(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(0, {"iteration": 0, "eval/n": 3})
        writer.write(
            1, {"a/nan": math.nan, "a/inf": np.inf, "a/jax": jnp.float32(0.5), "a/np": np.int64(2), "s": "x"}
        )
        assert len(read(tmp_path / "metrics.jsonl")) == 2  # flushed while the run goes on
        writer.write(1, {"eval/n": 4})  # an evaluation after its iteration joins it
        writer.write(2, {"b": True})
        with pytest.raises(ValueError, match="iteration=1 come after"):
            writer.write(1, {})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"iteration": 0, "eval/n": 3},
        {"iteration": 1, "a/nan": None, "a/inf": None, "a/jax": 0.5, "a/np": 2, "s": "x", "eval/n": 4},
        {"iteration": 2, "b": True},
    ]


def test_resume_has_no_iteration_twice(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        for iteration in range(6):
            writer.write(iteration, {"x": iteration})
    with open(writer.path, "a") as file:
        file.write('{"iteration": 6, "x"')  # cut short by a kill
    with MetricsWriter(tmp_path, resume=3, tensorboard=False) as writer:
        writer.write(3, {"late": 1})  # the evaluation of the resumed iteration still joins it
        writer.write(4, {"x": 40})
    assert [(row["iteration"], row["x"]) for row in read(writer.path)] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 40),
    ]
    assert read(writer.path)[3] == {"iteration": 3, "x": 3, "late": 1}
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        writer.write(0, {"x": 7})
    assert read(writer.path) == [{"iteration": 0, "x": 7}]


def test_a_writer_that_writes_nothing_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"iteration": 3, "eval/n": 2}, {"iteration": 4, "x": 1}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 5'
    (tmp_path / "metrics.jsonl").write_text(text)
    monkeypatch.setitem(sys.modules, "wandb", object())  # there, but not to be started
    with MetricsWriter(tmp_path, resume=3, wandb_project="p") as writer:
        assert writer.evaluated(3) and not writer.evaluated(4)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert (tmp_path / "metrics.jsonl").read_text() == text


def test_pearson() -> None:
    one = np.array([1.0, 2.0, 3.0])
    assert pearson(one, 2 * one) == pytest.approx(1)
    assert pearson(one, np.array([1.0, 3.0, 2.0])) == pytest.approx(0.5)
    assert pearson(np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[2.0, 3.0], [4.0, 1.0]])) == pytest.approx(1)
    for flat in (np.zeros(3), np.full(3, 0.1), np.float32(1.1) + np.array([0, 1.2e-7, 2.4e-7])):
        assert math.isnan(pearson(one, flat)) and math.isnan(pearson(flat, one))
    assert math.isnan(pearson(np.zeros(0), np.zeros(0)))


def test_tensorboard(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"a/b": 0.5, "text": "x", "a/nan": math.nan})
    events = list((tmp_path / "tensorboard").iterdir())
    assert len(events) == 1
    assert b"a/b" in events[0].read_bytes()


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "run", enabled=False) as writer:
        writer.write(1, {"a": 1})
    assert not (tmp_path / "run").exists()


def test_missing_wandb_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"config.log.wandb_project='p' needs .*pip install"):
        MetricsWriter(tmp_path / "run", wandb_project="p")
    assert not (tmp_path / "run").exists()


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list = []

    class Fake:
        @staticmethod
        def init(**settings):
            calls.append(settings)
            return Fake

        @staticmethod
        def log(values, step):
            calls.append((step, values))

        @staticmethod
        def finish():
            calls.append("finished")

    monkeypatch.setitem(sys.modules, "wandb", Fake)
    with MetricsWriter(tmp_path / "run", wandb_project="p", config={"a": 1}, tensorboard=False) as writer:
        writer.write(2, {"iteration": 2, "x": 1.0, "nan": math.nan, "s": "t"})
    assert calls[0]["project"] == "p"
    assert calls[0]["id"] == "run"
    assert calls[0]["config"] == {"a": 1}
    assert calls[1:] == [(2, {"x": 1.0}), "finished"]
