"""Cells: names, command lines, and what is refused."""

from __future__ import annotations

import pytest

from configs.sweeps.cell import cells
from configs.sweeps.combinators import fixed, product, seeds

METHODS = {"grpo": {"credit.aem.enabled": False}, "aem": {}}


def test_cells() -> None:
    made = cells("configs/alfworld_aem.py:quick", METHODS, product(seeds(2), fixed({"train.iterations": 4})))
    assert [cell.name for cell in made] == ["grpo-seed0", "grpo-seed1", "aem-seed0", "aem-seed1"]
    assert made[1].flags() == [
        "--config=configs/alfworld_aem.py:quick,seed=1",
        "--config.credit.aem.enabled=False",
        "--config.train.iterations=4",
    ]
    assert cells("a.py", METHODS, seeds(1))[1].flags() == ["--config=a.py:seed=0"]


def test_refused() -> None:
    with pytest.raises(ValueError, match="its own seed"):
        cells("a.py", METHODS, fixed({"train.iterations": 4}))
    with pytest.raises(ValueError, match="its own seed"):
        cells("a.py", METHODS, [*seeds(2), *seeds(1)])
    with pytest.raises(ValueError, match="names a directory"):
        cells("a.py", {"a/b": {}}, seeds(1))
    with pytest.raises(ValueError, match="both set credit"):
        cells("a.py", METHODS, product(seeds(1), fixed({"credit.aem.enabled": True})))
