"""Outcomes: when a run counts as finished, and how directories are grouped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from configs import arguments
from tools import outcomes


def config(**more: Any) -> Any:
    return arguments.lock(
        ConfigDict({"train": {"iterations": 2}, "eval": {"splits": ("valid_seen",)}, "seed": 0, **more})
    )


def write(path: Path, rows: list[dict[str, Any]], of: Any = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "config.json").write_text(arguments.to_json(of or config()))
    return path


def evaluated(iteration: int, success: float | None, **more: float) -> dict[str, Any]:
    return {"iteration": iteration, "eval/valid_seen_success": success, "eval/valid_seen_n": 8, **more}


START, MIDDLE = evaluated(0, 0.25), {"iteration": 1, "policy/entropy_mean": 0.2}
END = evaluated(2, 0.5) | {"policy/entropy_mean": 0.1}


def test_finished(tmp_path: Path) -> None:
    found = outcomes.read(write(tmp_path, [START, MIDDLE, END]), config())
    assert (found.state, found.iteration, found.entropy) == ("finished", 2, 0.1)
    assert (found.success, found.games) == ({"valid_seen": 0.5}, {"valid_seen": 8})


@pytest.mark.parametrize(
    "rows",
    [
        [START, MIDDLE],
        [START, MIDDLE, {"iteration": 2, "policy/entropy_mean": 0.1}],  # killed in its last evaluation
        [START, MIDDLE, evaluated(2, None)],  # every game of the last evaluation failed
    ],
)
def test_unfinished(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert outcomes.read(write(tmp_path, rows), config()).state == "unfinished"


def test_new_and_other(tmp_path: Path) -> None:
    assert outcomes.read(tmp_path / "none", config()).state == "new"
    other = outcomes.read(write(tmp_path, [START, MIDDLE, END]), config(lam=1.0))
    assert (other.state, other.changed) == ("other", ("lam",))
    # Asked for more iterations, a finished run goes on.
    longer = arguments.overlay(config(), {"train.iterations": 3})
    assert outcomes.read(tmp_path, longer).state == "other"


def test_without_a_config(tmp_path: Path) -> None:
    """A metrics file alone: its last row counts as the last iteration."""
    write(tmp_path, [START, MIDDLE, END])
    (tmp_path / "config.json").unlink()
    found = outcomes.read(tmp_path)
    assert (found.state, found.success) == ("finished", {"valid_seen": 0.5})


def test_groups() -> None:
    assert outcomes.method_and_seed("runs/aem-seed3") == ("aem", 3)
    assert outcomes.method_and_seed("alfworld_aem-quick-seed=12") == ("alfworld_aem-quick", 12)
    assert outcomes.method_and_seed("lam=0.5-seed0") == ("lam=0.5", 0)
    assert outcomes.method_and_seed("other") == ("other", None)
    names = ("b-seed10", "b-seed2", "a-seed=0", "c")
    grouped = outcomes.by_method(Path("runs") / name for name in names)
    assert {method: [path.name for path in paths] for method, paths in grouped.items()} == {
        "b": ["b-seed2", "b-seed10"],
        "a": ["a-seed=0"],
        "c": ["c"],
    }
