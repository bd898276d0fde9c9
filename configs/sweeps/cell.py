"""A cell of a sweep: one run, named by its method and seed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Cell:
    """What `main.py` is started with. `name` is its run directory below the sweep's."""

    method: str
    seed: int
    config: str  # file and arguments, the seed among them: "configs/alfworld_aem.py:quick,seed=3"
    overrides: Mapping[str, Any]  # by dotted keys

    @property
    def name(self) -> str:
        return f"{self.method}-seed{self.seed}"

    def flags(self) -> list[str]:
        """The command line that says so, without the run directory."""
        return [f"--config={self.config}", *(f"--config.{k}={v}" for k, v in self.overrides.items())]


def cells(
    config: str, methods: Mapping[str, Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> list[Cell]:
    """Every method on every row, methods outermost.

    Args:
      config: a config file that takes `seed` as an argument, with other arguments or none.
      methods: the overrides that make each method, by its name.
      rows: what all methods share; each row sets "seed", as `combinators.seeds` does.

    Raises:
      ValueError: for a method whose name cannot name a directory, a row without a seed, two rows with one seed, or
        a key that a method and a row both set.
    """
    numbers = [row["seed"] for row in rows if "seed" in row]
    if len(set(numbers)) < len(rows):
        raise ValueError(f"every row needs its own seed; the seeds of {len(rows)} rows are {numbers}")
    made = []
    for method, overrides in methods.items():
        if not re.fullmatch(r"\w[\w.=+-]*", method):
            raise ValueError(f"{method=} names a directory; use letters, digits and . = + - _")
        for row in rows:
            if twice := sorted(row.keys() & overrides.keys()):
                raise ValueError(f"{method=} and the row of seed {row['seed']} both set {', '.join(twice)}")
            shared = {key: value for key, value in row.items() if key != "seed"}
            text = f"{config}{',' if ':' in config else ':'}seed={row['seed']}"
            made.append(Cell(method, row["seed"], text, dict(overrides) | shared))
    return made
