"""Episodes as a response table, the advantages of its rows, and the trainer's draws."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl import batching, step_groups
from rl.credit.estimators import EstimatorSettings, estimate
from rl.trainer import Trainer
from rl.types import Draw, Trajectory
from tests.rl.episodes import episode

GRPO = EstimatorSettings("grpo", "trajectory", 1, 1e-6, "zero")


def pack(episodes: list[Trajectory], context: str = "step", **changes: Any) -> Any:
    shapes = dict(microbatch_tokens=64, row_buckets=(16,), response_bucket=16)
    return batching.pack(episodes, context=context, **(shapes | changes))


def table(episodes: list[Trajectory]) -> Any:
    step_groups.label(episodes, step_groups.StepGroupSettings())
    return jax.tree.map(jnp.asarray, pack(episodes).responses)


def advantages(episodes: list[Trajectory], name: str = "grpo") -> np.ndarray:
    """Of every response of the episodes that are trained on."""
    rows = table(episodes)
    return np.asarray(estimate(rows, settings=dataclasses.replace(GRPO, name=name)))[np.asarray(rows.valid)]


def returns(*values: float, group: int = 0, turns: int = 1) -> list[Trajectory]:
    """A group of episodes with these returns, all from one task and through the same states."""
    played = [episode(group, m, [(2, 2)] * turns, reward=value) for m, value in enumerate(values)]
    return [dataclasses.replace(t, draw=dataclasses.replace(t.draw, task="a task")) for t in played]


def draws(tasks: list[str], *, groups: int, members: int, iteration: int = 0, cursor: int = 0) -> list[Draw]:
    """What the trainer draws for an iteration."""
    config = SimpleNamespace(seed=0, rollout=SimpleNamespace(group_size=members))
    rest = dict.fromkeys(("state", "learner", "progress", "workdir"))
    parts: Any = SimpleNamespace(tasks={"train": tasks}, iteration=iteration, cursor=cursor, **rest)
    return Trainer(config, parts).draws(groups=groups, drawn=0)
