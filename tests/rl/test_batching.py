"""Packing: what the sampler saw is what is trained on, whatever the shapes."""

from __future__ import annotations

import numpy as np
import pytest

from rl import batching
from rl.types import TrainBatch
from tests.rl.episodes import batch_of_episodes, episode

SETTINGS = dict(microbatch_tokens=64, row_buckets=(8, 16, 32, 64), response_bucket=8)


def spans(batch: TrainBatch) -> dict[int, tuple[list[int], list[float]]]:
    """Ids and logp of every response, by its row of the table."""
    found: dict[int, tuple[list[int], list[float]]] = {}
    for rows in batch.rows:
        for b in range(rows.tokens.shape[0]):
            for response in set(rows.response_id[b].tolist()) - {-1}:
                at = rows.response_id[b] == response
                assert response not in found, "a response lies in one row"
                found[response] = (rows.tokens[b][at].tolist(), rows.logp_sampler[b][at].tolist())
    return found


@pytest.mark.parametrize("context", ["step", "conversation"])
@pytest.mark.parametrize("minibatch", [0, 7])
def test_every_sampled_token_once(context: str, minibatch: int) -> None:
    """Bugs 5 and 12: all turns are trained on, with the ids that were sampled."""
    episodes = batch_of_episodes()
    batch = batching.pack(episodes, context=context, minibatch_responses=minibatch, **SETTINGS)
    found = spans(batch)
    turns = [turn for t in episodes for turn in t.turns]
    assert sorted(found) == list(range(len(turns)))
    for response, turn in enumerate(turns):
        assert found[response][0] == turn.response_ids
        np.testing.assert_allclose(found[response][1], turn.logp, rtol=1e-6)
    assert sum(batch.minibatches) == len(batch.rows)
    assert len(batch.minibatches) == (1 if not minibatch else round(len(turns) / minibatch))
    assert int(batch.responses.valid.sum()) == len(turns)


def test_conversation_row_is_the_whole_episode() -> None:
    t = episode(0, 0, [(3, 2), (2, 1)])
    batch = batching.pack([t], context="conversation", **SETTINGS)
    (rows,) = batch.rows
    first, second = t.turns
    assert rows.tokens[0, :8].tolist() == [
        *first.context_ids, *first.response_ids, *second.context_ids, *second.response_ids,
    ]  # fmt: skip
    assert rows.response_id[0].tolist() == [-1, -1, -1, 0, 0, -1, -1, 1]
    assert rows.positions[0].tolist() == list(range(8))
    assert rows.segments[0].tolist() == [1] * 8
    assert not rows.segments[1:].any()


def test_step_rows_start_anew() -> None:
    batch = batching.pack([episode(0, 0, [(3, 2), (2, 1)])], context="step", **SETTINGS)
    lengths = sorted(int((row > 0).sum()) for rows in batch.rows for row in rows.segments if row.any())
    assert lengths == [3, 5]


def test_table() -> None:
    """Bug 7: a failed episode leaves no trace; penalties stay apart from rewards."""
    episodes = [
        episode(0, 0, [(1, 1), (1, 2)], reward=10.0, penalties=(-0.1, 0.0)),
        episode(0, 1, [(1, 1)], failed="worker died"),
        episode(4, 0, [(2, 2)]),
    ]
    table = batching.pack(episodes, context="conversation", **SETTINGS).responses
    assert table.valid.tolist() == [True] * 3 + [False] * 5
    assert table.group[:3].tolist() == [0, 0, 4]
    assert table.trajectory[:3].tolist() == [0, 0, 2]
    assert table.turn[:3].tolist() == [0, 1, 0]
    assert table.outcome[:3].tolist() == [10.0, 10.0, 0.0]
    np.testing.assert_allclose(table.penalty[:3], [-0.1, 0, 0])
    np.testing.assert_allclose(table.reward[:3], [-0.1, 10, 0])


def test_shaping_joins_the_penalty_and_masked_episodes_are_left_out() -> None:
    episodes = [
        episode(0, 0, [(1, 1), (1, 2)], reward=10.0, penalties=(-0.1, 0.0)),
        episode(0, 1, [(1, 1), (2, 2)], reward=5.0),
    ]
    episodes[0].turns[1].shaping, episodes[0].turns[1].step_group = -0.5, 3
    episodes[1].masked = "step_limit"
    batch = batching.pack(episodes, context="conversation", **SETTINGS)
    table = batch.responses
    assert int(table.valid.sum()) == 2 and sorted(spans(batch)) == [0, 1]
    np.testing.assert_allclose(table.penalty[:2], [-0.1, -0.5])
    np.testing.assert_allclose(table.reward[:2], [-0.1, 9.5])
    np.testing.assert_allclose(
        table.outcome[:2], [10, 10]
    )  # the bare return: the estimator's mode adds the rest
    assert table.step_group[:2].tolist() == [0, 3]


def test_ids_stay_below_the_size_of_the_table() -> None:
    """Or the last episodes would belong to no trajectory where many before them failed."""
    episodes = [episode(n // 4, n % 4, [(1, 1)], failed="" if n > 9 else "x") for n in range(12)]
    table = batching.pack(episodes, context="conversation", **SETTINGS).responses
    assert table.trajectory[table.valid].tolist() == [10, 11]
    assert table.valid.shape == (16,)


def test_few_shapes_and_little_padding() -> None:
    source = np.random.default_rng(0)
    rows = [batching.Row([1] * n, [-1] * n, [0.0] * n) for n in source.integers(1, 33, 200)]
    blocks = batching.microbatches(rows, tokens=128, buckets=(8, 16, 32))
    assert {block.tokens.shape for block in blocks} <= {(16, 8), (8, 16), (4, 32)}
    real = sum(int((block.segments > 0).sum()) for block in blocks)
    assert real == sum(len(row.tokens) for row in rows)
    assert real / sum(block.tokens.size for block in blocks) > 0.7


def test_rows_divide_by_devices() -> None:
    rows = [batching.Row([1] * 5, [-1] * 5, [0.0] * 5)] * 3
    (block,) = batching.microbatches(rows, tokens=8, buckets=(8,), multiple=4)
    assert block.tokens.shape == (4, 8)
    assert not block.segments[3].any()


def test_row_too_long() -> None:
    with pytest.raises(ValueError, match=r"65 tokens exceeds learner\.row_buckets"):
        batching.pack([episode(0, 0, [(60, 5)])], context="conversation", **SETTINGS)


def test_nothing_but_failures() -> None:
    batch = batching.pack([episode(0, 0, [], failed="x")], context="step", **SETTINGS)
    assert batch.rows == () and not batch.responses.valid.any()
    assert batch.minibatches == (), "no optimizer step"
