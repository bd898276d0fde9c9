"""The comparison of methods: runs of different lengths, single runs, and seeds that do not pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.plot_methods import plot_methods


def make_run(path: Path, iterations: int) -> Path:
    path.mkdir()
    rows = [
        {"iteration": i, "policy/entropy_mean": 0.5 / (1 + i), "rollout/success_mean": i / 10}
        for i in range(iterations)
    ]
    for row in rows[::2]:
        row["eval/valid_seen_success"] = row["iteration"] / 10
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path / "metrics.jsonl"


def test_pictures(tmp_path: Path) -> None:
    two = [make_run(tmp_path / f"aem-seed{n}", 5 + n) for n in (0, 1)]
    one, none = [make_run(tmp_path / "grpo-seed1", 4)], [make_run(tmp_path / "new-seed0", 0)]
    plot_methods({"aem": two, "grpo": one, "new": none}, tmp_path / "out" / "a.png", baseline="grpo")
    assert (tmp_path / "out" / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to pair"):
        plot_methods({"aem": two[:1], "grpo": one}, tmp_path / "b.png", baseline="grpo")
