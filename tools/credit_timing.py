"""What AEM adds to the credit stage: the jitted stage with and without it, timed in turns on a run's own responses."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl import builder, records
from rl.credit.assign import assign
from rl.types import Responses


@dataclasses.dataclass(frozen=True)
class Table:
    """A response table as the credit stage takes it, [R] each, on the default device."""

    responses: Responses
    entropy: Any
    surprisal: Any
    count: int  # responses that are valid; the rest is padding
    source: str  # where the values are from


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one call; medians over `rounds`."""

    on: float  # with AEM
    off: float
    difference: float  # median over rounds of on - off, each pair measured back to back
    low: float  # the quartiles of that difference
    high: float
    rounds: int


def recorded(path: Path, *, multiple: int) -> Table:
    """Returns the table of a responses/*.jsonl.gz, padded to a multiple of rows as training pads it."""
    rows = records.read_lines(path)
    episodes: dict[int, float] = {}
    for row in rows:  # records older than the field "outcome" hold the rewards that it sums
        episodes[row["trajectory"]] = episodes.get(row["trajectory"], 0.0) + row["reward"]
    column: dict[str, Sequence[float]] = {
        name: [row[name] for row in rows] for name in ("group", "trajectory", "turn", "reward")
    }
    column["outcome"] = [episodes[row["trajectory"]] for row in rows]
    column["penalty"] = [row.get("penalty", 0.0) for row in rows]
    column["step_group"] = [row.get("step_group", row["group"]) for row in rows]
    entropy, surprisal = ([row[name] or 0.0 for row in rows] for name in ("entropy", "surprisal"))
    return _table(column, entropy, surprisal, multiple=multiple, source=path.name)


def synthetic(responses: int, *, groups: int, group_size: int, multiple: int) -> Table:
    """Returns a table of the given size with drawn entropies, for a run that kept no responses."""
    draw = np.random.default_rng(0)
    episodes = groups * group_size
    trajectory = np.sort(np.arange(responses) % episodes)
    turn = np.arange(responses) - np.searchsorted(trajectory, trajectory)
    entropy = draw.gamma(1.0, 0.15, responses)
    column = {
        "group": trajectory // group_size,
        "trajectory": trajectory,
        "turn": turn,
        "reward": np.zeros(responses),
        "outcome": draw.integers(0, 2, episodes)[trajectory],
        "penalty": np.zeros(responses),
        "step_group": trajectory // group_size,
    }
    return _table(column, entropy, entropy, multiple=multiple, source="drawn values")


def _table(column: Mapping[str, Any], entropy: Any, surprisal: Any, *, multiple: int, source: str) -> Table:
    count = len(entropy)
    size = max(1, -(-count // multiple)) * multiple

    def padded(values: Any, kind: Any) -> jax.Array:
        return jnp.asarray(np.pad(np.asarray(values, kind), (0, size - count)))

    kinds = {name: np.float32 if name in ("reward", "outcome", "penalty") else np.int32 for name in column}
    responses = Responses(
        **{name: padded(values, kinds[name]) for name, values in column.items()},
        valid=jnp.arange(size) < count,
    )
    return Table(responses, padded(entropy, np.float32), padded(surprisal, np.float32), count, source)


def measure(table: Table, credit: Any, *, rounds: int) -> Timing:
    """Times `rl.credit.assign` compiled with the section `credit` of a config, AEM on, and with AEM off, in turns.

    What is timed is what a training step waits for: the call, the computation and its end; not the compilation.
    """
    credit = credit.copy_and_resolve_references()
    credit.aem.enabled = True
    on = builder.credit_settings(credit)
    off = dataclasses.replace(on, aem=None, sign_mask="none")
    stages = [jax.jit(functools.partial(assign, settings=settings)) for settings in (on, off)]
    value = jnp.zeros_like(table.entropy)
    given = (table.responses, table.entropy, table.surprisal, value, jax.random.key(0), jnp.float32(jnp.nan))

    def seconds(stage: Any) -> float:
        started = time.perf_counter()
        jax.block_until_ready(stage(*given))
        return time.perf_counter() - started

    for stage in stages * 3:  # the first call compiles
        seconds(stage)
    # In turns, and each first as often as second: whatever else the machine does hits both alike.
    pairs = []
    for number in range(rounds):
        order = (0, 1) if number % 2 else (1, 0)
        took = {which: seconds(stages[which]) for which in order}
        pairs.append((took[0], took[1]))
    times = np.array(pairs)
    one, two = (float(value) for value in np.median(times, 0))
    low, middle, high = (float(q) for q in np.quantile(times[:, 0] - times[:, 1], [0.25, 0.5, 0.75]))
    return Timing(on=one, off=two, difference=middle, low=low, high=high, rounds=rounds)
