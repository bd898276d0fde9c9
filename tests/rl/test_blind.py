"""Blocks of blind contexts: what they hold, where they point, what is left out when they are full."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl import batching, blind
from rl.blind import BlindSettings
from rl.types import Blind, TrainBatch, Trajectory, Turn
from tests.rl.episodes import batch_of_episodes, episode


def encode(turn: Turn) -> list[int]:
    """A blind context of 3 ids that name the turn's prompt."""
    return [100, 101, 102 + int(turn.prompt.split()[-1])]


def packed(episodes: list[Trajectory], tokens: int = 64, context: str = "conversation") -> TrainBatch:
    return batching.pack(
        episodes, context=context, microbatch_tokens=tokens, row_buckets=(16, 64), response_bucket=32
    )


def blocks(
    episodes: list[Trajectory], batch: TrainBatch, located: list[int], extremity: Any = None, **changes: Any
) -> tuple[tuple[Blind | None, ...], dict[str, float]]:
    size = batch.responses.valid.shape[0]
    mask = np.zeros(size, bool)
    mask[located] = True
    settings = BlindSettings(**({"width": 32, "rows": (1, 2, 8)} | changes.pop("settings", {})))
    how_far = np.zeros(size) if extremity is None else extremity
    return blind.pack(episodes, batch, mask, how_far, encode=encode, settings=settings, **changes)


@pytest.mark.parametrize("context", ["conversation", "step"])
def test_every_located_response_stands_there_once_with_its_own_ids_and_points_at_them(context: str) -> None:
    episodes = batch_of_episodes()
    batch = packed(episodes, context=context)
    turns = [turn for t in episodes for turn in t.turns]
    located = list(range(0, len(turns), 2))
    made, metrics = blocks(episodes, batch, located)
    assert len(made) == len(batch.rows) > 3
    seen = []
    for block, rows in zip(made, batch.rows, strict=True):
        if block is None:
            continue
        for segment in range(1, block.segments.max() + 1):
            mine = block.segments == segment
            r = int(block.response_id[mine].max())
            turn, inside = turns[r], mine & (block.response_id >= 0)
            seen.append(r)
            assert block.tokens[mine].tolist() == encode(turn) + turn.response_ids
            assert block.positions[mine].tolist() == list(range(mine.sum()))
            assert block.response_id[inside].tolist() == [r] * len(turn.response_ids)
            there = block.row[inside], block.column[inside]
            assert rows.tokens[there].tolist() == turn.response_ids
            assert set(rows.response_id[there].tolist()) == {r}
        unused = block.segments == 0
        assert (block.response_id[unused] == -1).all() and not block.tokens[unused].any()
    assert sorted(seen) == located
    assert metrics["attribution/located"] == len(located) and metrics["attribution/overflow"] == 0
    assert metrics["attribution/blind_tokens"] == sum(3 + len(turns[r].response_ids) for r in located)


def test_nothing_located_makes_no_block() -> None:
    episodes = batch_of_episodes()
    made, metrics = blocks(episodes, packed(episodes), [])
    assert set(made) == {None}
    assert metrics == {"attribution/located": 0, "attribution/overflow": 0, "attribution/blind_tokens": 0}


def test_the_lowest_height_that_holds_them_is_used() -> None:
    episodes = [episode(0, 0, [(2, 5)] * 6)]  # 3 + 5 ids each
    batch = packed(episodes)
    for located, height in ((2, 1), (3, 2), (5, 8)):
        (block,), _ = blocks(episodes, batch, list(range(located)), settings={"width": 16})
        assert block is not None and block.tokens.shape == (height, 16)
    (block,), _ = blocks(episodes, batch, [0], settings={"width": 16}, multiple=4)
    assert block is not None and block.tokens.shape == (4, 16)


def test_overflow_keeps_the_most_extreme_on_either_side_and_is_counted() -> None:
    episodes = [episode(0, 0, [(2, 5)] * 6)]
    batch = packed(episodes)
    extremity = np.zeros(batch.responses.valid.shape[0])
    extremity[:6] = [0.1, -3.0, 0.2, 2.0, 0.0, 1.0]
    (block,), metrics = blocks(
        episodes, batch, [0, 1, 2, 3, 5], extremity, settings={"width": 16, "rows": (1,)}
    )
    assert block is not None
    assert set(block.response_id[block.response_id >= 0].tolist()) == {1, 3}
    assert metrics["attribution/located"] == 5 and metrics["attribution/overflow"] == 3


def test_a_context_longer_than_a_row_is_overflow_and_blocks_nobody() -> None:
    episodes = [episode(0, 0, [(2, 12), (2, 3)])]
    (block,), metrics = blocks(episodes, packed(episodes), [0, 1], settings={"width": 8})
    assert block is not None and metrics["attribution/overflow"] == 1
    assert set(block.response_id[block.response_id >= 0].tolist()) == {1}


def test_episodes_that_are_not_trained_on_do_not_shift_the_rows() -> None:
    episodes = [episode(0, 0, [(2, 3)], failed="lost"), episode(0, 1, [(2, 4)])]
    (block,), _ = blocks(episodes, packed(episodes), [0])
    assert block is not None
    assert (
        block.tokens[block.segments == 1].tolist()
        == encode(episodes[1].turns[0]) + episodes[1].turns[0].response_ids
    )


@pytest.mark.parametrize("settings", [{"width": 0}, {"rows": ()}, {"rows": (4, 2)}, {"rows": (0, 1)}])
def test_bad_shapes_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        BlindSettings(**({"width": 32, "rows": (1, 2)} | settings))
