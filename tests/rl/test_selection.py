"""Which trajectories are trained on: rounds of dynamic sampling, starvation, compact filtering, overlong shaping."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rl import selection
from rl.types import Draw, Trajectory, Turn

STOPS = {"1": "success", "0": "failure", "l": "step_limit", "c": "context", "x": "failed"}
OFF = selection.SelectionSettings(
    reject_uniform=False,
    tries=10,
    oversample=1.0,
    starved="stop",
    compact=(),
    overlong_buffer=0,
    overlong_penalty=1.0,
)
REJECT = dataclasses.replace(OFF, reject_uniform=True)


def member(letter: str, group: int, number: int) -> Trajectory:
    """A played episode: 1 success, 0 failure, l step limit, c out of context, x broken environment."""
    turns = [
        Turn([1], [2] * (3 + number), [0.0] * (3 + number), "stop", "p", "b", "a", "r") for _ in range(2)
    ]
    trajectory = Trajectory(Draw(f"task {group}", group, number, 0), turns, success=letter == "1")
    trajectory.stop = STOPS[letter]
    trajectory.failed = "worker died" if letter == "x" else ""
    return trajectory


class Script:
    """Groups that will be sampled, a word each; remembers how many were asked for."""

    def __init__(self, *words: str):
        self.words, self.asked, self.drawn = words, [], 0

    def __call__(self, groups: int) -> list[Trajectory]:
        self.asked.append(groups)
        numbers = range(self.drawn, self.drawn + groups)
        self.drawn += groups
        return [member(letter, g, m) for g in numbers for m, letter in enumerate(self.words[g])]


def select(
    script: Script, groups: int, settings: selection.SelectionSettings = REJECT, **changes: Any
) -> selection.Selected:
    return selection.select(
        script, groups=groups, response_limit=10, settings=dataclasses.replace(settings, **changes)
    )


def chosen(selected: selection.Selected) -> list[tuple[int, str]]:
    """(group number, task) of every group that was selected, in order."""
    return list(dict.fromkeys((t.draw.group, t.draw.task) for t in selected.trajectories))


# dynamic sampling


def test_live_groups_are_found_over_rounds() -> None:
    script = Script("00", "10", "11", "01", "11", "10")
    selected = select(script, 3)
    assert script.asked == [3, 2, 1], "each round draws what is missing"
    assert chosen(selected) == [(0, "task 1"), (1, "task 3"), (2, "task 5")]
    assert [t.draw.member for t in selected.trajectories] == [0, 1] * 3
    assert len(selected.sampled) == 12
    assert selected.metrics == {
        "selection/rounds": 3,
        "selection/groups_sampled": 6,
        "selection/groups_rejected": 3,
        "selection/groups_live": 3,
        "selection/masked": 0,
    }


def test_sampled_episodes_keep_the_numbers_they_were_drawn_with() -> None:
    """Or a rejected group 0 and a live group that became 0 would be one group in the rollout's metrics."""
    selected = select(Script("00", "10"), 1)
    assert chosen(selected) == [(0, "task 1")]
    assert [(t.draw.group, t.draw.task) for t in selected.sampled] == [
        (0, "task 0"), (0, "task 0"), (1, "task 1"), (1, "task 1"),
    ]  # fmt: skip


def test_without_rejection_one_round_takes_what_comes() -> None:
    script = Script("00", "10", "11")
    selected = select(script, 3, OFF, oversample=2.0)
    assert script.asked == [3]
    assert chosen(selected) == [(0, "task 0"), (1, "task 1"), (2, "task 2")]
    assert selected.metrics["selection/groups_live"] == 1 and selected.metrics["selection/rounds"] == 1
    assert selected.metrics["selection/groups_rejected"] == 0


def test_starved_stops_and_says_what_was_found() -> None:
    script = Script("00", "10", "11", "00", "11")
    with pytest.raises(selection.Starved) as error:
        select(script, 3, tries=2)
    assert script.asked == [3, 2]
    assert (
        "only 1 of 3 groups have both a success and a failure after 2 rounds (5 groups, success 50%)"
        in str(error.value)
    )


def test_starved_may_be_kept_and_is_filled_up_behind_the_live() -> None:
    selected = select(Script("00", "10", "11", "00", "11"), 3, tries=2, starved="keep")
    assert chosen(selected) == [(0, "task 1"), (1, "task 0"), (2, "task 2")]
    assert selected.metrics["selection/groups_live"] == 1
    assert selected.metrics["selection/groups_rejected"] == 4


def test_one_round_may_be_all_there_is() -> None:
    with pytest.raises(selection.Starved, match="after 1 rounds"):
        select(Script("00", "10"), 2, tries=1)


def test_oversampling_draws_more_and_takes_what_is_wanted() -> None:
    script = Script("10", "11", "01", "10", "00", "10", "00", "01")
    selected = select(script, 4, oversample=1.5)
    assert script.asked == [6], "1.5 groups for each of the four"
    assert chosen(selected) == [(0, "task 0"), (1, "task 2"), (2, "task 3"), (3, "task 5")]
    assert selected.metrics["selection/groups_live"] == 4
    few = Script("10", "00", "11", "10", "10", "00")
    assert chosen(select(few, 2, oversample=1.5)) == [(0, "task 0"), (1, "task 3")]
    assert few.asked == [3, 2], "rounded up"


# what makes a group uniform


@pytest.mark.parametrize("word", ["10", "001", "10x"])
def test_a_group_is_live_with_a_success_and_a_failure(word: str) -> None:
    assert not selection.uniform([member(letter, 0, n) for n, letter in enumerate(word)])


@pytest.mark.parametrize("word", ["11", "00", "1", "1x", "xx", "0xx0", ""])
def test_a_group_is_uniform_without_both(word: str) -> None:
    assert selection.uniform([member(letter, 0, n) for n, letter in enumerate(word)])


def test_the_filter_looks_at_success_not_at_penalties_or_shaping() -> None:
    """Report 8: failures that differ in what they were fined for have nothing to teach."""
    group = [member("0", 0, 0), member("0", 0, 1)]
    group[0].turns[0].penalty, group[1].turns[1].shaping = -0.1, -1.0
    assert selection.uniform(group)
    right = [member("1", 0, 0), member("1", 0, 1)]
    right[0].turns[0].reward, right[1].turns[0].penalty = 10.0, -5.0
    assert selection.uniform(right)


# compact filtering


def test_compact_masks_by_stop_reason_and_leaves_failures_alone() -> None:
    group = [member(letter, 0, n) for n, letter in enumerate("10lcx")]
    selection.compact(group, stops=("step_limit", "context", "failed"))
    assert [t.masked for t in group] == ["", "", "step_limit", "context", ""]
    assert [t.trained for t in group] == [True, True, False, False, False]
    assert [t.failed for t in group] == ["", "", "", "", "worker died"]


def test_masked_members_do_not_make_a_group_live() -> None:
    # without the filter groups 0 and 1 would do
    script = Script("1l", "0c1", "10l")
    selected = select(script, 1, compact=("step_limit", "context"))
    assert chosen(selected) == [(0, "task 1")] and script.asked == [1, 1]
    assert selected.metrics["selection/masked"] == 1
    assert [t.masked for t in selected.sampled] == ["", "step_limit", "", "context", ""]
    assert chosen(select(Script("1l", "0c1"), 1)) == [(0, "task 0")]


# overlong shaping


def test_overlong_numbers() -> None:
    settings = {"limit": 512, "buffer": 128, "penalty": 1.0}
    for length, expected in ((1, 0.0), (384, 0.0), (385, -1 / 128), (448, -0.5), (512, -1.0)):
        assert selection.overlong(length, **settings) == pytest.approx(expected, abs=1e-12), length
    assert selection.overlong(11, limit=12, buffer=4, penalty=0.1) == pytest.approx(-0.075)


def test_shaping_is_set_on_every_turn_of_the_selected() -> None:
    # responses of 3, 4, 5 tokens a turn; limit 10, so the penalty grows from 4 on: 0, 0, -1/6 of 0.6
    selected = select(Script("100"), 1, overlong_buffer=6, overlong_penalty=0.6)
    shaping = [[turn.shaping for turn in t.turns] for t in selected.trajectories]
    assert shaping == [[0.0, 0.0], [0.0, 0.0], [pytest.approx(-0.1)] * 2]
    off = select(Script("100"), 1)
    assert not any(turn.shaping for t in off.trajectories for turn in t.turns)


# the rest


def test_by_group_keeps_the_order_of_draws() -> None:
    played = [member("1", 2, 0), member("0", 0, 0), member("0", 2, 1)]
    assert selection.by_group(played) == [[played[1]], [played[0], played[2]]]
    assert selection.by_group([]) == []


def test_success_rate_leaves_failed_episodes_out() -> None:
    assert selection.success_rate([member(letter, 0, 0) for letter in "110lx"]) == 0.5
    assert selection.success_rate([member("x", 0, 0)]) == 0.0


def test_settings_refuse_what_cannot_be() -> None:
    for changes, message in (
        ({"starved": "wait"}, r"unknown starved='wait'; known: stop, keep"),
        ({"tries": 0}, "tries=0 and oversample=1.0 must be at least 1"),
        ({"oversample": 0.5}, "oversample=0.5 must be at least 1"),
        ({"overlong_buffer": -1}, "must not be negative"),
        ({"overlong_penalty": -0.1}, "must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(OFF, **changes)
