"""Response records and transcripts: what goes in comes back, and can be read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rl import records

ROW = {
    "group": 0, "trajectory": 1, "turn": 2, "entropy": np.float32(0.5), "surprisal": 0.25, "alpha": 1.5,
    "advantage_before": -1.0, "advantage_after": -1.5, "reward": 0.0, "stop": "stop", "valid": True, "anchor": "é",
}  # fmt: skip
TURN = {
    "prompt": "You are in a room.\n```look```", "response": "<action>go to shelf 1</action>", "action": "go to shelf 1",
    "valid": False, "reward": -0.1, "stop": "length", "entropy": 0.5, "alpha": 1.25, "advantage_before": 0.5,
    "advantage_after": 0.625,
}  # fmt: skip


def test_responses_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "responses" / "00001.jsonl.gz"
    records.write_responses(path, [ROW, ROW | {"entropy": math.nan, "task": "t"}])
    assert records.read_lines(path) == [ROW | {"entropy": 0.5}, ROW | {"entropy": None, "task": "t"}]
    before = path.read_bytes()
    records.write_responses(path, [ROW, ROW | {"entropy": math.nan, "task": "t"}])
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["00001.jsonl.gz"]


def test_incomplete_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="response record 1 lacks alpha, stop"):
        records.write_responses(
            tmp_path / "x", [ROW, {k: v for k, v in ROW.items() if k not in ("alpha", "stop")}]
        )
    assert not list(tmp_path.iterdir())


def test_transcript(tmp_path: Path) -> None:
    episode = {
        "task": "t/1",
        "goal": "look",
        "success": False,
        "stop": "step_limit",
        "return": -0.1,
        "turns": [TURN],
    }
    records.write_transcript(tmp_path / "train_00001.md", [episode, {"turns": []}])
    text = (tmp_path / "train_00001.md").read_text()
    assert "# Episode 1: failure, 1 turns, return -0.10, stopped by step_limit, 1 invalid\n" in text
    assert "````text\nYou are in a room.\n```look```\n````" in text  # a fence that the text cannot close
    assert (
        "*entropy 0.500, alpha 1.250, advantage +0.500 -> +0.625, reward -0.10, ended by length, INVALID ACTION*"
        in text
    )
    assert records.read_lines(tmp_path / "train_00001.jsonl.gz") == [episode, {"turns": []}]


def test_sparse_turn() -> None:
    assert records.numbers({"prompt": "", "response": ""}) == ""
    assert records.numbers({"advantage": 1.0, "entropy": None, "valid": True}) == "advantage +1.000"
