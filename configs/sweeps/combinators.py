"""Sweeps as lists of overrides: a row is {dotted config key: value}, a sweep the list of its rows.

`product` is associative with `[{}]` as its unit and `[]` as its zero; `chain` is associative with `[]` as its unit;
`product(chain(a, b), c) == chain(product(a, c), product(b, c))` where no row is repeated. Nothing is changed in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Overrides = dict[str, Any]


def fixed(overrides: Mapping[str, Any]) -> list[Overrides]:
    """One row: what every cell of a product shares."""
    return [dict(overrides)]


def each(key: str, values: Iterable[Any]) -> list[Overrides]:
    """One row a value of one key."""
    return [{key: value} for value in values]


def seeds(count: int, *, first: int = 0) -> list[Overrides]:
    """One row a seed, `first` to `first + count - 1`."""
    return each("seed", range(first, first + count))


def product(*sweeps: Sequence[Mapping[str, Any]]) -> list[Overrides]:
    """Every combination of a row of each sweep; the last sweep changes fastest.

    Raises:
      ValueError: if two sweeps set the same key, because then one of the values would never be run.
    """
    return [_merged(rows) for rows in itertools.product(*sweeps)]


def paired(*sweeps: Sequence[Mapping[str, Any]]) -> list[Overrides]:
    """Row i of every sweep, merged: keys that move together.

    Raises:
      ValueError: if the sweeps differ in length, or two of them set the same key.
    """
    lengths = [len(sweep) for sweep in sweeps]
    if len(set(lengths)) > 1:
        raise ValueError(f"paired sweeps must have as many rows as each other; they have {lengths}")
    return [_merged(rows) for rows in zip(*sweeps)]


def chain(*sweeps: Sequence[Mapping[str, Any]]) -> list[Overrides]:
    """The rows of all sweeps, one sweep after the other; a row that was there before is not repeated."""
    rows: list[Overrides] = []
    for row in itertools.chain(*sweeps):
        if row not in rows:
            rows.append(dict(row))
    return rows


def label(overrides: Mapping[str, Any]) -> str:
    """A name from the last words of the keys: {"credit.aem.lam": 0.5, "seed": 1} is "lam=0.5-seed=1"."""
    return "-".join(f"{key.rpartition('.')[2]}={value}" for key, value in overrides.items())


def _merged(rows: Iterable[Mapping[str, Any]]) -> Overrides:
    merged: Overrides = {}
    for row in rows:
        if twice := sorted(merged.keys() & row.keys()):
            raise ValueError(f"two sweeps set {', '.join(twice)}; chain them, or leave it out of one")
        merged |= row
    return merged
