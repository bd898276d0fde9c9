"""Labels the responses that left the same state: one task draw, one anchor (GiGPO: Feng et al. 2025, section 4.2).

Where texts of one state differ a little (search results, web pages), similar anchors count as one state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Indel

from rl.types import Trajectory

ANCHORS = ("exact", "similar")


@dataclasses.dataclass(frozen=True)
class StepGroupSettings:
    """How anchors are compared.

    anchors: "exact", or "similar": a state joins the step group whose first anchor it resembles most.
    threshold: the least likeness that joins, in [0, 1]; 1 is "exact". The likeness of `a` and `b` is twice their
      longest common subsequence over their lengths together.
    """

    anchors: str = "exact"
    threshold: float = 0.9

    def __post_init__(self) -> None:
        if self.anchors not in ANCHORS:
            raise ValueError(f"unknown anchors={self.anchors!r}; known: {', '.join(ANCHORS)}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} must lie in [0, 1]")


def label(trajectories: Sequence[Trajectory], settings: StepGroupSettings) -> int:
    """Sets `step_group` of every turn that is trained on, dense from 0, and returns the number of step groups.

    Every turn is in exactly one. Anchors are compared only within a task draw: two draws of one task are two groups,
    and so are two tasks whose observations read alike. Similar anchors are taken in the order of trajectories and
    turns, each joining the step group it resembles most (of equals the first), so the result depends on that order;
    equal anchors always share one.
    """
    states: dict[int, dict[str, int]] = {}  # task draw -> its anchors in order, then their step groups
    turns = [(t.draw.group, turn) for t in trajectories if t.trained for turn in t.turns]
    for group, turn in turns:
        anchors = states.setdefault(group, {})
        anchors.setdefault(turn.anchor, len(anchors))
    numbers: dict[int, int] = {}  # first anchors, by their place among all states -> step group
    place = 0
    for anchors in states.values():
        leaders = range(len(anchors)) if settings.anchors == "exact" else _leaders(list(anchors), settings)
        for anchor, leader in zip(anchors, leaders, strict=True):
            anchors[anchor] = place + leader
        place += len(anchors)
    for group, turn in turns:
        turn.step_group = numbers.setdefault(states[group][turn.anchor], len(numbers))
    return len(numbers)


def _leaders(texts: list[str], settings: StepGroupSettings) -> list[int]:
    """For each text the place of the first text of its step group: its own where none before it is like enough."""
    # All pairs at once: the library compares a pair once and uses every core; a search text by text would use one.
    alike = process.cdist(
        texts,
        texts,
        scorer=Indel.normalized_similarity,
        score_cutoff=settings.threshold,
        dtype=np.float64,
        workers=-1,
    )
    leaders: list[int] = []
    firsts: list[int] = []
    for place in range(len(texts)):
        best = max(firsts, key=lambda first: alike[place, first], default=place)  # the first of equals
        if best == place or alike[place, best] < settings.threshold:
            best = place
            firsts.append(place)
        leaders.append(best)
    return leaders
