"""The cost of STAPO's terms: shares and the floor, by hand; the measurement itself runs on a run's checkpoint."""

from __future__ import annotations

import dataclasses

import pytest

from tools import attribution_cost
from tools.attribution_cost import Cost

COST = Cost(
    rollout=6.0,
    without=14.0,
    extra=0.5,
    low=0.4,
    high=0.7,
    rounds=5,
    responses=200,
    located=10,
    held=9,
    blind_tokens=100,
    block_tokens=256,
    tokens=4000,
    reference=True,
)


def test_share_is_of_an_iteration_of_the_base_method() -> None:
    assert COST.share == pytest.approx(0.5 / 20)


def test_floor_counts_passes_over_tokens() -> None:
    # 100 tokens forward, backward and forward through the reference; 4000 scored twice and updated
    assert COST.floor == pytest.approx(100 * 4 / (4000 * 5))
    assert COST.least == pytest.approx(0.02 * 14 / 20)
    assert dataclasses.replace(COST, reference=False).floor == pytest.approx(100 * 4 / (4000 * 4))


def test_table_says_what_was_measured() -> None:
    text = attribution_cost.table(COST)
    assert (
        "10 of 200 (5.0%), 9 held" in text
        and "0.50 s [0.40, 0.70]" in text
        and "2.5% of an iteration" in text
    )


def test_a_directory_without_a_run_is_refused(tmp_path, capsys) -> None:
    assert attribution_cost.main([f"--workdir={tmp_path}"]) == 1
    assert "holds no run" in capsys.readouterr().err
