"""Labels the responses that left the same state: one task draw, one anchor (GiGPO: Feng et al. 2025, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

from rl.types import Trajectory


def label(trajectories: Sequence[Trajectory]) -> int:
    """Sets `step_group` of every turn that is trained on, dense from 0, and returns the number of step groups.

    Anchors are compared exactly and only within a task draw: two draws of one task are two groups, and so are two
    tasks whose observations read alike.
    """
    names: dict[tuple[int, str], int] = {}
    for trajectory in trajectories:
        for turn in trajectory.turns if trajectory.trained else ():
            turn.step_group = names.setdefault((trajectory.draw.group, turn.anchor), len(names))
    return len(names)
