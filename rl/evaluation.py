"""Success over a fixed list of games, with n and a 95 % interval."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from rl.metrics import wilson
from rl.rollout import Rollout
from rl.types import Draw, Trajectory


def fixed_tasks(tasks: Sequence[str], count: int) -> list[str]:
    """The same `count` tasks every time (0 = all), spread over the split and independent of any seed."""
    tasks = sorted(tasks)
    if not count or count >= len(tasks):
        return tasks
    return sorted(random.Random(0).sample(tasks, count))


def evaluate(
    rollout: Rollout,
    params: Any,
    tasks: Sequence[str],
    *,
    seed: int,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Plays each task once. The sampling seed depends on the task's place only, so that evaluations are paired."""
    draws = [Draw(task, n, 0, (seed * 7919 + n * 104729 + 13) % 2**32) for n, task in enumerate(tasks)]
    return rollout.collect(params, draws, on_episode=on_episode)


def summary(trajectories: Sequence[Trajectory], split: str) -> dict[str, float]:
    """`eval/<split>_...` metrics. Failed episodes are left out of n and counted apart."""
    played = [t for t in trajectories if not t.failed]
    wins, n = sum(t.success for t in played), len(played)
    low, high = wilson(wins, n)
    out = {
        f"eval/{split}_success": wins / n if n else float("nan"),
        f"eval/{split}_success_low": low,
        f"eval/{split}_success_high": high,
        f"eval/{split}_n": n,
        f"eval/{split}_failed": len(trajectories) - n,
        f"eval/{split}_turns_mean": sum(len(t.turns) for t in played) / max(1, n),
    }
    for kind in sorted({t.info.get("task_type", "") for t in played} - {""}):
        some = [t for t in played if t.info.get("task_type") == kind]
        out[f"eval/{split}_success_{kind}"] = sum(t.success for t in some) / len(some)
        out[f"eval/{split}_n_{kind}"] = len(some)
    return out
