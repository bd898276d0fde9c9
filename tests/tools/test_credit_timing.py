"""The tables that the credit stage is timed on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from configs import common
from rl import records
from tools.credit_timing import measure, recorded, synthetic


def test_recorded(tmp_path: Path) -> None:
    one = {
        "alpha": 1.0,
        "advantage_before": 0.0,
        "advantage_after": 0.0,
        "stop": "stop",
        "valid": True,
        "anchor": "",
    }
    numbers = [(0, 0, 0, 0.0, 0.5), (0, 0, 1, 1.0, 0.25), (0, 1, 0, 0.0, 0.75)]
    names = ("group", "trajectory", "turn", "reward", "entropy")
    rows = [one | {"surprisal": None, "penalty": -0.5} | dict(zip(names, values)) for values in numbers]
    records.write_responses(tmp_path / "00003.jsonl.gz", rows)
    table = recorded(tmp_path / "00003.jsonl.gz", multiple=4)
    assert (table.count, table.source) == (3, "00003.jsonl.gz")
    np.testing.assert_array_equal(table.responses.valid, [True, True, True, False])
    np.testing.assert_array_equal(table.responses.outcome, [1, 1, 0, 0])  # an episode's rewards, summed
    np.testing.assert_array_equal(table.responses.penalty, [-0.5, -0.5, -0.5, 0])
    np.testing.assert_array_equal(table.responses.trajectory, [0, 0, 1, 0])
    np.testing.assert_array_equal(table.entropy, [0.5, 0.25, 0.75, 0])
    np.testing.assert_array_equal(table.surprisal, np.zeros(4))


def test_synthetic_has_the_size_asked_for() -> None:
    table = synthetic(10, groups=2, group_size=2, multiple=8)
    assert table.count == int(table.responses.valid.sum()) == 10 and table.entropy.shape == (16,)
    np.testing.assert_array_equal(table.responses.trajectory[:10], [0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(table.responses.turn[:10], [0, 1, 2, 0, 1, 2, 0, 1, 0, 1])
    np.testing.assert_array_equal(table.responses.group[:10], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1])


def test_measure_leaves_the_config_alone() -> None:
    credit = common.base().credit
    found = measure(synthetic(8, groups=2, group_size=2, multiple=8), credit, rounds=2)
    assert found.rounds == 2 and min(found.on, found.off) > 0 and found.low <= found.difference <= found.high
    assert not credit.aem.enabled
