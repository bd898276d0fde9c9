"""Step groups: responses of one task draw that left the same state."""

from __future__ import annotations

from rl import batching, step_groups
from rl.types import Trajectory
from tests.rl.episodes import episode


def played(group: int, member: int, *anchors: str) -> Trajectory:
    trajectory = episode(group, member, [(1, 1)] * len(anchors))
    for turn, anchor in zip(trajectory.turns, anchors, strict=True):
        turn.anchor = anchor
    return trajectory


def labels(trajectories: list[Trajectory]) -> list[list[int]]:
    return [[turn.step_group for turn in trajectory.turns] for trajectory in trajectories]


def test_states_are_shared_within_a_draw_only() -> None:
    episodes = [
        played(0, 0, "hall", "shelf", "hall"),  # comes back to where it was
        played(0, 1, "hall", "desk"),
        played(1, 0, "hall", "shelf"),  # the same task drawn again: states of its own
    ]
    assert step_groups.label(episodes) == 5
    assert labels(episodes) == [[0, 1, 0], [0, 2], [3, 4]]


def test_anchors_are_compared_exactly() -> None:
    episodes = [played(0, 0, "hall", "Hall", "hall ", "")]
    assert step_groups.label(episodes) == 4
    assert labels(episodes) == [[0, 1, 2, 3]]


def test_labelling_again_gives_the_same_numbers() -> None:
    episodes = [played(0, 0, "a", "b"), played(2, 0, "b")]
    step_groups.label(episodes)
    assert step_groups.label(episodes) == 3 and labels(episodes) == [[0, 1], [2]]
    assert step_groups.label([]) == 0


def test_episodes_that_are_not_trained_on_use_no_number() -> None:
    """Every number must stay below the size of the response table, or the row belongs to no step group."""
    broken = played(0, 0, *(f"state {n}" for n in range(9)))
    broken.failed = "worker died"
    masked = played(0, 1, *(f"other {n}" for n in range(9)))
    masked.masked = "step_limit"
    episodes = [broken, masked, played(0, 2, "state 3", "end")]
    assert step_groups.label(episodes) == 2
    assert labels(episodes)[2] == [0, 1]


def test_labels_reach_the_response_table() -> None:
    episodes = [played(0, 0, "a", "b"), played(0, 1, "b", "c")]
    step_groups.label(episodes)
    batch = batching.pack(episodes, context="step", microbatch_tokens=16, row_buckets=(8,), response_bucket=8)
    assert batch.responses.step_group.tolist() == [0, 1, 1, 2, 0, 0, 0, 0]
