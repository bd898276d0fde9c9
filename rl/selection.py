"""Which trajectories are trained on: dynamic sampling, compact filtering, and DAPO's overlong shaping. On the host.

Filters look at success, never at a shaped return: a group of failures whose penalties differ has nothing to teach.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from rl.types import Trajectory

STARVED = ("stop", "keep")

Sample = Callable[[int], list[Trajectory]]  # so many new groups, of group numbers never used before


class Starved(RuntimeError):
    """Dynamic sampling found too few groups with both a success and a failure."""


@dataclasses.dataclass(frozen=True)
class SelectionSettings:
    """What the config says about selection; checked when built."""

    reject_uniform: (
        bool  # groups all right or all wrong are replaced by new ones (DAPO: Yu et al. 2025, section 3.2)
    )
    tries: int  # rounds of sampling an iteration, the first included
    oversample: float  # groups drawn for one that is missing
    starved: str  # stop | keep: what happens when the last round leaves groups missing
    compact: tuple[str, ...]  # episodes that ended so are not trained on and enter no statistic (DeepSWE)
    overlong_buffer: (
        int  # tokens before the response limit in which the penalty grows (DAPO, equation 13); 0 = off
    )
    overlong_penalty: float  # at the limit

    def __post_init__(self) -> None:
        if self.starved not in STARVED:
            raise ValueError(f"unknown starved={self.starved!r}; known: {', '.join(STARVED)}")
        if self.tries < 1 or self.oversample < 1:
            raise ValueError(f"tries={self.tries} and oversample={self.oversample} must be at least 1")
        if self.overlong_buffer < 0 or self.overlong_penalty < 0:
            raise ValueError("overlong_buffer and overlong_penalty must not be negative")


@dataclasses.dataclass
class Selected:
    """`trajectories` are those of the wanted groups, numbered densely from 0; `sampled` are all that were played."""

    trajectories: list[Trajectory]
    sampled: list[Trajectory]
    metrics: dict[str, float]


def select(sample: Sample, *, groups: int, response_limit: int, settings: SelectionSettings) -> Selected:
    """Samples until `groups` live groups are there, or once without rejection.

    Raises:
      Starved: after `tries` rounds with too few, unless `starved="keep"`, which fills up with rejected groups.
    """
    kept: list[list[Trajectory]] = []
    rejected: list[list[Trajectory]] = []
    sampled: list[Trajectory] = []
    rounds = 0
    while len(kept) < groups and rounds < (settings.tries if settings.reject_uniform else 1):
        rounds += 1
        wanted = groups - len(kept)
        new = sample(math.ceil(wanted * settings.oversample) if settings.reject_uniform else wanted)
        sampled += new
        compact(new, stops=settings.compact)
        for members in by_group(new):
            (rejected if settings.reject_uniform and uniform(members) else kept).append(members)
    if len(kept) < groups and settings.starved == "stop":
        raise Starved(
            f"only {len(kept)} of {groups} groups have both a success and a failure after {rounds} rounds "
            f"({len(kept) + len(rejected)} groups, success {success_rate(sampled):.0%}); make the tasks easier or "
            'harder, raise selection.tries, or set selection.starved="keep"'
        )
    chosen = [*kept, *rejected][:groups]
    trajectories = _numbered(chosen)
    shape_overlong(trajectories, limit=response_limit, settings=settings)
    return Selected(
        trajectories,
        sampled,
        {
            "selection/rounds": rounds,
            "selection/groups_sampled": len(kept) + len(rejected),
            "selection/groups_rejected": len(rejected),
            "selection/groups_live": sum(not uniform(members) for members in chosen),
            "selection/masked": sum(bool(t.masked) for t in trajectories),
        },
    )


def by_group(trajectories: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """The members of each task draw, in the order of the draws."""
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.draw.group, []).append(trajectory)
    return [groups[number] for number in sorted(groups)]


def uniform(members: Sequence[Trajectory]) -> bool:
    """True if the members that are trained on do not hold both a success and a failure."""
    return len({t.success for t in members if t.trained}) < 2


def compact(trajectories: Sequence[Trajectory], *, stops: Sequence[str]) -> None:
    """Masks the episodes that ended for one of these reasons (`context`, `step_limit`, ...)."""
    for trajectory in trajectories:
        if trajectory.stop in stops and not trajectory.failed:
            trajectory.masked = trajectory.stop


def shape_overlong(trajectories: Sequence[Trajectory], *, limit: int, settings: SelectionSettings) -> None:
    """Sets each turn's `shaping`: see `overlong`. The limit is that of one response."""
    if settings.overlong_buffer:
        for trajectory in trajectories:
            for turn in trajectory.turns:
                turn.shaping = overlong(
                    len(turn.response_ids),
                    limit=limit,
                    buffer=settings.overlong_buffer,
                    penalty=settings.overlong_penalty,
                )


def overlong(length: int, *, limit: int, buffer: int, penalty: float) -> float:
    """Returns `min(-(length - (limit - buffer)) / buffer * penalty, 0)`, in tokens (DAPO, equation 13)."""
    return min(-(length - (limit - buffer)) / buffer * penalty, 0.0)


def success_rate(trajectories: Sequence[Trajectory]) -> float:
    played = [t for t in trajectories if not t.failed]
    return sum(t.success for t in played) / max(1, len(played))


def _numbered(groups: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
    out = []
    for number, members in enumerate(groups):
        for trajectory in members:
            draw = dataclasses.replace(trajectory.draw, group=number)
            out.append(dataclasses.replace(trajectory, draw=draw))  # `sampled` keeps its own numbers
    return out
