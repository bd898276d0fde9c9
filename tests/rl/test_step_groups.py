"""Step groups: responses of one task draw that left the same state."""

from __future__ import annotations

import random

import pytest

from rl import batching, step_groups
from rl.step_groups import StepGroupSettings
from rl.types import Trajectory
from tests.rl.episodes import episode

EXACT = StepGroupSettings()


def similar(threshold: float = 0.9) -> StepGroupSettings:
    return StepGroupSettings("similar", threshold)


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
    assert step_groups.label(episodes, EXACT) == 5
    assert labels(episodes) == [[0, 1, 0], [0, 2], [3, 4]]


def test_anchors_are_compared_exactly() -> None:
    episodes = [played(0, 0, "hall", "Hall", "hall ", "")]
    assert step_groups.label(episodes, EXACT) == 4
    assert labels(episodes) == [[0, 1, 2, 3]]


def test_labelling_again_gives_the_same_numbers() -> None:
    episodes = [played(0, 0, "a", "b"), played(2, 0, "b")]
    step_groups.label(episodes, EXACT)
    assert step_groups.label(episodes, EXACT) == 3 and labels(episodes) == [[0, 1], [2]]
    assert step_groups.label([], EXACT) == 0


def test_episodes_that_are_not_trained_on_use_no_number() -> None:
    """Every number must stay below the size of the response table, or the row belongs to no step group."""
    broken = played(0, 0, *(f"state {n}" for n in range(9)))
    broken.failed = "worker died"
    masked = played(0, 1, *(f"other {n}" for n in range(9)))
    masked.masked = "step_limit"
    episodes = [broken, masked, played(0, 2, "state 3", "end")]
    assert step_groups.label(episodes, EXACT) == 2
    assert labels(episodes)[2] == [0, 1]


def test_labels_reach_the_response_table() -> None:
    episodes = [played(0, 0, "a", "b"), played(0, 1, "b", "c")]
    step_groups.label(episodes, EXACT)
    batch = batching.pack(episodes, context="step", microbatch_tokens=16, row_buckets=(8,), response_bucket=8)
    assert batch.responses.step_group.tolist() == [0, 1, 1, 2, 0, 0, 0, 0]


# similar anchors


def test_similar_anchors_share_a_state_from_the_threshold_on() -> None:
    """Twice the longest common subsequence over both lengths: "abcdefghij" and nine of its letters, 18 / 19."""
    anchors = "abcdefghij", "abcdefghi", "abcdefghiX", "klm"
    for threshold, expected in ((0.947, [0, 0, 1, 2]), (0.9, [0, 0, 0, 1]), (0.95, [0, 1, 2, 3])):
        episodes = [played(0, 0, *anchors)]
        assert step_groups.label(episodes, similar(threshold)) == max(expected) + 1
        assert labels(episodes) == [expected], threshold


def test_a_state_joins_what_it_resembles_most_and_the_first_of_equals() -> None:
    episodes = [played(0, 0, "aaaaaaaaaa", "aaaaabbbbb", "aaaaaaabbb", "aaaaaaaabb")]
    # aaaaaaabbb: 7 of 10 letters in common with the first, 8 with the second; aaaaaaaabb: 8 with the first, 7
    step_groups.label(episodes, similar(0.7))
    assert labels(episodes) == [[0, 1, 1, 0]]
    tied = [played(0, 0, "aabb", "bbcc", "aacc")]
    step_groups.label(tied, similar(0.5))
    assert labels(tied) == [[0, 0, 0]]


def test_the_first_anchor_stands_for_its_group_so_likeness_does_not_chain() -> None:
    episodes = [played(0, 0, "aaaa", "aaab", "aabb")]
    step_groups.label(episodes, similar(0.75))
    assert labels(episodes) == [[0, 0, 1]]


def test_similar_states_of_two_draws_stay_apart() -> None:
    episodes = [played(0, 0, "a long hall"), played(1, 0, "a long hall"), played(0, 1, "a long halls")]
    assert step_groups.label(episodes, similar()) == 2
    assert labels(episodes) == [[0], [1], [0]]


def common(a: str, b: str) -> int:
    """The longest common subsequence, by the textbook's table."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for n, y in enumerate(b):
            row.append(before[n] + 1 if x == y else max(before[n + 1], row[n]))
    return row[-1]


def by_hand(anchors: list[str], threshold: float) -> list[int]:
    firsts: list[str] = []
    out: list[int] = []
    for place, anchor in enumerate(anchors):
        if anchor in anchors[:place]:  # equal texts stay together, whatever came between
            out.append(out[anchors.index(anchor)])
            continue
        alike = [2 * common(anchor, f) / (len(anchor) + len(f)) if anchor or f else 1.0 for f in firsts]
        best = max(range(len(alike)), key=lambda n: (alike[n], -n), default=-1)
        if best < 0 or alike[best] < threshold:
            best = len(firsts)
            firsts.append(anchor)
        out.append(best)
    return out


@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.75, 0.9, 1.0])
def test_against_a_greedy_search_by_hand(threshold: float) -> None:
    source = random.Random(0)
    anchors = ["".join(source.choices("ab ", k=source.randrange(8))) for _ in range(60)]
    episodes = [played(0, n, *anchors[n * 6 : n * 6 + 6]) for n in range(10)]
    step_groups.label(episodes, similar(threshold))
    assert [number for of_one in labels(episodes) for number in of_one] == by_hand(anchors, threshold)


def test_a_threshold_of_one_is_exact() -> None:
    source = random.Random(1)
    anchors = ["".join(source.choices("ab", k=4)) for _ in range(40)]
    one, two = [played(0, 0, *anchors)], [played(0, 0, *anchors)]
    assert step_groups.label(one, similar(1.0)) == step_groups.label(two, EXACT)
    assert labels(one) == labels(two)


@pytest.mark.parametrize("settings", [{"anchors": "fuzzy"}, {"threshold": 1.1}, {"threshold": -0.1}])
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=r"known: exact, similar|must lie in \[0, 1\]"):
        StepGroupSettings(**settings)
