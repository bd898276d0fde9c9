"""The split of an iteration's time: literal medians, the table, and AEM's part measured on a run's own responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configs import arguments, common
from rl import records
from tools import cost_split
from tools.credit_timing import Timing


def row(iteration: int, scale: float, **more: float) -> dict[str, Any]:
    phases = {"rollout": 4.0, "batch": 0.01, "score": 2.0, "credit": 0.002, "update": 3.0, "iteration": 10.0}
    return {
        "iteration": iteration,
        "credit/responses": 50 * iteration,
        **{f"time/{name}": scale * value for name, value in phases.items()},
        **more,
    }


# The first iteration compiles: nothing of it may be seen.
ROWS = [
    {"iteration": 0, "time/eval": 9.0},
    row(1, 50.0),
    row(2, 0.5),
    row(3, 1.0),
    row(4, 7.0, **{"time/eval": 5.0}),
]


def test_medians() -> None:
    found = cost_split.split(ROWS)
    assert (found.iteration, found.count, found.evaluation, found.responses) == (10.0, 3, 7.0, 150)
    assert {phase.name: phase.seconds for phase in found.phases} == {
        "rollout": 4.0,
        "batch": 0.01,
        "score": 2.0,
        "credit": 0.002,
        "update": 3.0,
        "other": pytest.approx(0.988),
    }
    assert sum(phase.share for phase in found.phases) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="1 trained iterations"):
        cost_split.split(ROWS[:2])


def test_table() -> None:
    text = cost_split.markdown(
        cost_split.split(ROWS), Timing(3e-4, 2e-4, 1e-4, 5e-5, 2e-4, 40), about="a table"
    )
    for line in (
        "Medians over 3 iterations (all trained ones but the first), 150 responses each.",
        "| rollout | 4.00 | 40.0 % |",
        "| credit: base advantage and AEM | 0.002 | 0.02 % |",
        "| with AEM | 0.300 | 0.003 % |",
        "| **AEM's own** (median difference) | 0.100 | 0.001 % |",
    ):
        assert line in text.splitlines()
    assert "40 rounds on a table; quartiles of the difference 0.050 to 0.200 ms" in text


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: bool) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = json.loads(arguments.to_json(common.base()))
    config["gone"] = 1  # a run of an older program
    del config["credit"]["aem"]["eps"]
    (run / "config.json").write_text(json.dumps(config))
    if kept:
        one = {
            "alpha": 1.0,
            "advantage_before": 0.0,
            "advantage_after": 0.0,
            "stop": "stop",
            "valid": True,
            "anchor": "",
        }
        rows = [
            one | {"group": n // 6, "trajectory": n // 3, "turn": n % 3, "reward": float(n % 2)}
            | {"entropy": n / 10, "surprisal": n / 10}
            for n in range(12)
        ]  # fmt: skip
        records.write_responses(run / "responses" / "00001.jsonl.gz", rows)
    cost_split.main([f"--workdir={run}", f"--out={out}", "--rounds=4"])
    text = (out / "cost_split.md").read_text()
    assert (
        "12 responses in 256 rows (00001.jsonl.gz)" if kept else "150 responses in 256 rows (drawn"
    ) in text
    assert "4 rounds on" in text and text in capsys.readouterr().out
    assert (out / "cost_split.png").read_bytes().startswith(b"\x89PNG")


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: .*metrics.jsonl"):
        cost_split.main([f"--workdir={tmp_path}"])
