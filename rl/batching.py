"""Episodes to the two tables. Rows are what the sampler saw, id for id; shapes come from a short list."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence

import numpy as np

from rl.types import Responses, Tokens, TrainBatch, Trajectory

# group, trajectory, turn, step group, outcome, reward, penalty
_Record = tuple[int, int, int, int, float, float, float]


@dataclasses.dataclass
class Row:
    """One token row before padding. Lists are aligned; `response_id` is -1 outside spans."""

    tokens: list[int]
    response_id: list[int]
    logp: list[float]

    def extend(self, ids: Sequence[int], response: int = -1, logp: Sequence[float] | None = None) -> None:
        self.tokens.extend(ids)
        self.response_id.extend([response] * len(ids))
        self.logp.extend(logp if logp is not None else [0.0] * len(ids))


def pack(
    trajectories: Sequence[Trajectory],
    *,
    context: str,
    microbatch_tokens: int,
    row_buckets: Sequence[int],
    response_bucket: int,
    minibatch_responses: int = 0,
    seed: int = 0,
    multiple: int = 1,
) -> TrainBatch:
    """The response table and the token rows of all episodes that are trained on.

    Rows are dealt at random (by `seed`) into mini-batches of about `minibatch_responses` responses (0: one), each cut
    into micro-batches. `multiple`: rows of a micro-batch divide by it (data-parallel devices). Raises ValueError if a
    row is longer than the last bucket.
    """
    rows: list[Row] = []
    table: list[_Record] = []
    for number, trajectory in enumerate(trajectories):
        if not trajectory.trained:
            continue
        row = Row([], [], [])
        for turn_number, turn in enumerate(trajectory.turns):
            if context == "step" and turn_number:
                rows.append(row)
                row = Row([], [], [])
            row.extend(turn.context_ids)
            row.extend(turn.response_ids, len(table), turn.logp)
            table.append(
                (
                    trajectory.draw.group,
                    number,
                    turn_number,
                    turn.step_group,
                    trajectory.outcome,
                    turn.reward + turn.penalty + turn.shaping,
                    turn.penalty + turn.shaping,
                )
            )
        if row.tokens:
            rows.append(row)
    blocks = [
        microbatches(part, tokens=microbatch_tokens, buckets=row_buckets, multiple=multiple)
        for part in _deal(rows, minibatch_responses, seed)
    ]
    return TrainBatch(
        _table(table, response_bucket), tuple(itertools.chain(*blocks)), tuple(len(part) for part in blocks)
    )


def _deal(rows: list[Row], minibatch_responses: int, seed: int) -> list[list[Row]]:
    """Rows in mini-batches of equal numbers of rows, as many as the responses fill (at least one)."""
    responses = sum(len(set(row.response_id) - {-1}) for row in rows)
    count = max(1, round(responses / minibatch_responses)) if minibatch_responses else 1
    count = min(count, len(rows))
    order = random.Random(seed).sample(rows, len(rows))
    return [order[number::count] for number in range(count)]


def _table(rows: list[_Record], bucket: int) -> Responses:
    # Every id lies in [0, size), also where many episodes failed.
    ids = max((1 + max(row[:4]) for row in rows), default=1)
    size = -(-max(ids, len(rows)) // bucket) * bucket
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7

    def column(values: Sequence[float], dtype: type) -> np.ndarray:
        out = np.zeros(size, dtype)
        out[: len(values)] = values
        return out

    group, trajectory, turn, step_group = (column(c, np.int32) for c in columns[:4])
    outcome, reward, penalty = (column(c, np.float32) for c in columns[4:])
    valid = np.arange(size) < len(rows)
    return Responses(group, trajectory, turn, step_group, outcome, reward, penalty, valid)


def microbatches(
    rows: Sequence[Row], *, tokens: int, buckets: Sequence[int], multiple: int = 1
) -> list[Tokens]:
    """Cuts rows, shortest first, into padded blocks of about `tokens` tokens; one shape a bucket.

    A bucket that cannot fill a block passes its rest to the next wider one, so little is computed on padding.
    """
    ordered = sorted(rows, key=lambda row: len(row.tokens))
    if ordered and len(ordered[-1].tokens) > buckets[-1]:
        raise ValueError(
            f"a row of {len(ordered[-1].tokens)} tokens exceeds learner.row_buckets={tuple(buckets)}; add a wider one"
        )
    blocks: list[Tokens] = []
    start = 0
    for number, width in enumerate(buckets):
        height = max(1, tokens // width // multiple) * multiple
        end = start
        while end < len(ordered) and len(ordered[end].tokens) <= width:
            end += 1
        last = end == len(ordered)
        while end - start >= height or (last and end > start):
            blocks.append(_block(ordered[start : min(start + height, end)], height, width))
            start = min(start + height, end)
        if last or number + 1 == len(buckets):
            break
    return blocks


def _block(rows: Sequence[Row], height: int, width: int) -> Tokens:
    out = Tokens(
        tokens=np.zeros((height, width), np.int32),
        positions=np.zeros((height, width), np.int32),
        segments=np.zeros((height, width), np.int32),
        response_id=np.full((height, width), -1, np.int32),
        logp_sampler=np.zeros((height, width), np.float32),
    )
    for number, row in enumerate(rows):
        size = len(row.tokens)
        out.tokens[number, :size] = row.tokens
        out.positions[number, :size] = np.arange(size)
        out.segments[number, :size] = 1
        out.response_id[number, :size] = row.response_id
        out.logp_sampler[number, :size] = row.logp
    return out
