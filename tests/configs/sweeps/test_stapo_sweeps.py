"""The STAPO sweep: every cell is a config that exists, and they differ in what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs import arguments
from rl import builder
from tools import run_sweep

ROOT = Path(__file__).parents[3]
SWEEP = "configs/sweeps/stapo_ablations.py"


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_every_cell_is_a_config_of_its_own() -> None:
    cells = run_sweep.load(SWEEP)
    assert len(cells) == 39
    configs = [run_sweep.resolve(cell) for cell in cells]
    assert len({arguments.to_json(config) for config in configs}) == 39
    assert {config.warmstart.seed for config in configs} == {2}
    for config in configs:
        builder.attribution_settings(config.attribution)
        builder.credit_settings(config.credit)


def test_the_baseline_only_lacks_the_terms() -> None:
    gigpo, stapo = (run_sweep.resolve(cell) for cell in run_sweep.load(SWEEP + ":main,seeds=1"))
    one, two = arguments.leaves(gigpo), arguments.leaves(stapo)
    apart = {key for key in one if one[key] != two[key]}
    assert apart == {"attribution.reward_coef", "attribution.penalty_coef"}


def test_small_is_short() -> None:
    configs = [run_sweep.resolve(cell) for cell in run_sweep.load(SWEEP + ":main,small")]
    assert len(configs) == 6
    assert {(config.train.iterations, config.rollout.groups) for config in configs} == {(12, 12)}
