"""Packs the trajectory-blind contexts of located responses (STAPO, section 4.2), a block beside each micro-batch.

A block holds the blind prompt and the sampled ids of some responses of its micro-batch, several to a row, and where
each of those ids stands under its full context: the update gathers that pass's activations instead of running it again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from rl.types import Blind, TrainBatch, Trajectory, Turn


@dataclasses.dataclass(frozen=True)
class BlindSettings:
    """The shapes of a block: `width` tokens a row, and the heights it may have; the last is the most that fits."""

    width: int
    rows: tuple[int, ...]

    def __post_init__(self):
        if self.width < 1 or not self.rows or list(self.rows) != sorted(set(self.rows)) or self.rows[0] < 1:
            raise ValueError(
                f"width={self.width} must be positive and rows={self.rows} positive numbers in ascending order"
            )


def pack(
    trajectories: Sequence[Trajectory],
    batch: TrainBatch,
    located: np.ndarray,
    extremity: np.ndarray,
    *,
    encode: Callable[[Turn], list[int]],
    settings: BlindSettings,
    multiple: int = 1,
) -> tuple[tuple[Blind | None, ...], dict[str, float]]:
    """(one block or None a micro-batch, metrics).

    `batch` is what `rl.batching.pack` made of `trajectories`, on the host. `located` [R] are the responses to hold and
    `extremity` [R] says which of them matter most when a block is full; the others are counted as overflow. `encode`
    gives the blind context of a turn. `multiple`: rows of a block divide by it (data-parallel devices).
    """
    turns = [turn for t in trajectories if t.trained for turn in t.turns]
    heights = tuple(-(-rows // multiple) * multiple for rows in settings.rows)
    blocks: list[Blind | None] = []
    held = tokens = 0
    for rows in batch.rows:
        places = _places(np.asarray(rows.response_id))
        chosen = sorted(filter(located.__getitem__, places), key=lambda r: (-abs(float(extremity[r])), r))
        used: list[int] = []  # tokens of each row
        members: list[
            tuple[int, int, int, list[int]]
        ] = []  # response, row of the block, its first column, context
        for r in chosen:
            context = encode(turns[r])
            size = len(context) + len(turns[r].response_ids)
            row = next((n for n, taken in enumerate(used) if taken + size <= settings.width), len(used))
            if size > settings.width or row == heights[-1]:
                continue
            if row == len(used):
                used.append(0)
            members.append((r, row, used[row], context))
            used[row] += size
        height = next(height for height in heights if height >= len(used))
        blocks.append(_block(members, turns, places, height, settings.width) if members else None)
        held, tokens = held + len(members), tokens + sum(used)
    count = int(np.sum(located))
    return tuple(blocks), {
        "attribution/located": count,
        "attribution/overflow": count - held,
        "attribution/blind_tokens": tokens,
    }


def _places(response_id: np.ndarray) -> dict[int, tuple[int, int]]:
    """response -> (row, column) of its first token. A response's tokens follow one another in one row."""
    before = np.pad(response_id, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    starts = np.argwhere((response_id >= 0) & (response_id != before))
    return {int(response_id[row, column]): (int(row), int(column)) for row, column in starts}


def _block(
    members: Sequence[tuple[int, int, int, list[int]]],
    turns: Sequence[Turn],
    places: dict[int, tuple[int, int]],
    height: int,
    width: int,
) -> Blind:
    out = {name.name: np.zeros((height, width), np.int32) for name in dataclasses.fields(Blind)}
    out["response_id"] -= 1
    for number, (r, row, start, context) in enumerate(members):
        ids = turns[r].response_ids
        begin, end = start + len(context), start + len(context) + len(ids)
        out["tokens"][row, start:end] = context + ids
        out["positions"][row, start:end] = np.arange(end - start)
        out["segments"][row, start:end] = 1 + number
        out["response_id"][row, begin:end] = r
        out["row"][row, begin:end] = places[r][0]
        out["column"][row, begin:end] = places[r][1] + np.arange(len(ids))
    return Blind(**out)
