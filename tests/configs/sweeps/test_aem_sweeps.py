"""The AEM sweeps: every cell is a config that exists, they differ in what they say, and share their clone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from absl import flags
from ml_collections import config_flags

from configs import arguments
from tools import run_sweep

ROOT = Path(__file__).parents[3]
ABLATIONS, COEFFICIENTS = "configs/sweeps/aem_ablations.py", "configs/sweeps/aem_coefficients.py"


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def parsed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The config that main.py gets from these flags."""
    monkeypatch.setattr("sys.argv", ["main.py", *words])  # where ml_collections looks for overrides
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file("config", lock_config=True, flag_values=values)
    values(["main.py", *words])
    return holder.value


@pytest.mark.parametrize(("sweep", "count"), [(ABLATIONS, 30), (COEFFICIENTS, 21)])
def test_every_cell_is_a_config_of_its_own(sweep: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = run_sweep.load(sweep)
    assert len(cells) == count
    configs = [run_sweep.resolve(cell) for cell in cells]
    assert len({arguments.to_json(config) for config in configs}) == count
    assert {config.seed for config in configs} == {cell.seed for cell in cells}
    # The clone depends on this and on what no cell changes.
    assert {config.warmstart.seed for config in configs} in ({0}, {2})
    for cell, config in [(cells[0], configs[0]), (cells[-1], configs[-1])]:
        assert arguments.diff(parsed(cell.flags(), monkeypatch), config) == []


def test_methods() -> None:
    aem = {
        cell.method: run_sweep.resolve(cell).credit.aem
        for cell in run_sweep.load(ABLATIONS + ":quick,seeds=1")
    }
    assert list(aem) == ["grpo", "aem", "aem_shuffle", "aem_reverse", "aem_trajectory", "aem_batch"]
    assert [m for m, a in aem.items() if not a.enabled] == ["grpo"]
    assert [m for m, a in aem.items() if a.shuffle] == ["aem_shuffle"]
    assert [m for m, a in aem.items() if a.reverse] == ["aem_reverse"]
    assert {a.scope for a in aem.values()} == {"group", "trajectory", "batch"}


def test_coefficients() -> None:
    found = {c.name: run_sweep.resolve(c).credit.aem for c in run_sweep.load(COEFFICIENTS + ":seeds=1")}
    assert (found["lam=0.25-threshold=0.1-seed0"].lam, found["lam=1.0-threshold=0.5-seed0"].threshold) == (
        0.25,
        0.5,
    )
    assert len(found) == 7 and all(a.enabled for a in found.values())
