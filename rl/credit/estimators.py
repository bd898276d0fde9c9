"""Base advantages of response rows, `[R] -> [R]`: who did better than the others of the same task draw.

A group is the set of trajectories sampled for one task draw, named by an integer: neither equal prompt texts
nor two draws of one task are ever merged. Ids are in `[0, R)`, trajectory ids are unique over the batch.

`outcome[r]` is the return the caller wants compared. With `unit="trajectory"` every trajectory counts once in its
group's statistics, by the mean of its rows (normally all equal). With `unit="response"` every row counts, as in
stacks that treat each turn as a sample; an outcome that carries each step's own penalty belongs there, since over
trajectories its deviation would be that of the means and the rows would be scaled by too little. Penalties of any
form make a group without one success unequal.

Rows that are not valid, and rows whose outcome is not finite, enter no statistic and get advantage 0.
Advantages are float32 or wider and carry no gradient.

A new estimator is one function and one entry of `ESTIMATORS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.credit import grouped, trajectories
from rl.credit.gae import gae

UNITS = ("trajectory", "response")
SINGLETONS = ("zero", "raw")


class GroupReturns(NamedTuple):
    """Statistics of its group, at every row: arrays `[R]`."""

    outcome: Array  # the row's own return, 0 where not included
    included: Array  # bool: valid, with a finite outcome
    mean: Array
    std: Array
    count: Array  # trajectories (or responses) in the group


def grpo(
    outcome: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    unit: str = "trajectory",
    singleton: str = "zero",
) -> Float[Array, " R"]:
    """Returns `(R_i - mu) / (sd + eps)` (Shao et al. 2024, DeepSeekMath, section 4.1).

    Exactly 0 in a group of equal returns. A group of one gets 0, or its return over `1 + eps` with
    `singleton="raw"`.
    """
    returns = group_returns(outcome, group, trajectory, valid, unit=unit, ddof=ddof)
    unequal = returns.std > 0
    scale = jnp.where(unequal, returns.std + eps, 1)
    advantage = jnp.where(unequal, (returns.outcome - returns.mean) / scale, 0)
    return _alone(advantage, returns.outcome / (1 + eps), returns, singleton=singleton)


def centred(
    outcome: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    unit: str = "trajectory",
    singleton: str = "zero",
) -> Float[Array, " R"]:
    """Returns `R_i - mu` (Dr. GRPO: Liu et al. 2025, Understanding R1-Zero-like training, section 3.2)."""
    returns = group_returns(outcome, group, trajectory, valid, unit=unit, ddof=1)
    return _alone(returns.outcome - returns.mean, returns.outcome, returns, singleton=singleton)


def rloo(
    outcome: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    unit: str = "trajectory",
    singleton: str = "zero",
) -> Float[Array, " R"]:
    """Returns `R_i - mean_{j != i} R_j`, which is `n / (n - 1) * (R_i - mu)` (Ahmadian et al. 2024, RLOO)."""
    returns = group_returns(outcome, group, trajectory, valid, unit=unit, ddof=1)
    others = jnp.maximum(returns.count - 1, 1)
    advantage = (returns.outcome - returns.mean) * returns.count / others
    return _alone(advantage, returns.outcome, returns, singleton=singleton)


def outcome_itself(outcome: Float[Array, " R"], valid: Bool[Array, " R"]) -> Float[Array, " R"]:
    """Returns `R_i`, without a baseline (REINFORCE; whitened over the batch it is REINFORCE++)."""
    outcome = jax.lax.stop_gradient(grouped.wide(outcome))
    return jnp.where(valid & jnp.isfinite(outcome), outcome, 0)


def gigpo(
    outcome: Float[Array, " R"],
    reward: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    turn: Int[Array, " R"],
    step_group: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    gamma: float = 0.95,
    omega: float = 1.0,
    std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    unit: str = "trajectory",
    singleton: str = "zero",
) -> Float[Array, " R"]:
    """Returns `A^E + omega * A^S` (GiGPO: Feng et al. 2025, section 4).

    `A^E` compares the returns of the group, `A^S` the discounted returns-to-go of the responses that left the same
    anchor state; both are scaled by their deviation, or only centred with `std=False`. In a step group every response
    counts, also two of one trajectory that came back to the state.
    """

    def relative(values: Array, ids: Array, unit: str) -> Array:
        if std:
            return grpo(values, ids, trajectory, valid, ddof=ddof, eps=eps, unit=unit, singleton=singleton)
        return centred(values, ids, trajectory, valid, unit=unit, singleton=singleton)

    known = valid & jnp.isfinite(outcome)
    finite = known & jnp.isfinite(reward)
    to_go = trajectories.discounted(reward, trajectory, turn, finite, discount=gamma)
    steps = relative(jnp.where(finite, to_go, jnp.nan), step_group, "response")
    return jnp.where(known, relative(outcome, group, unit) + omega * steps, 0)


def whitened(
    advantage: Float[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    unit: str = "trajectory",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Array, " R"]:
    """Returns the advantages with mean 0 and deviation 1 over the whole batch (REINFORCE++: Hu 2025, section 3).

    All 0 where they do not differ.
    """
    batch = jnp.zeros_like(trajectory)
    returns = group_returns(advantage, batch, trajectory, valid, unit=unit, ddof=ddof)
    unequal = returns.std > 0
    scaled = (returns.outcome - returns.mean) / jnp.where(unequal, returns.std + eps, 1)
    return jnp.where(returns.included & unequal, scaled, 0)


def group_returns(
    outcome: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    unit: str,
    ddof: int,
) -> GroupReturns:
    """Returns the statistics that every group-relative estimator is made of."""
    if unit not in UNITS:
        raise ValueError(f"unknown {unit=}; known: {', '.join(UNITS)}")
    num_segments = group.shape[0]
    outcome = jax.lax.stop_gradient(grouped.wide(outcome))
    included = grouped.inside(group, valid & jnp.isfinite(outcome), num_segments=num_segments)
    counted, value = included, outcome
    if unit == "trajectory":
        counted = grouped.first_rows(trajectory, included)
        of_trajectory = grouped.mean(outcome, trajectory, included, num_segments=num_segments)
        value = grouped.rows(of_trajectory, trajectory, included)
    mean = grouped.mean(value, group, counted, num_segments=num_segments)
    std = grouped.std(value, group, counted, num_segments=num_segments, ddof=ddof)
    count = grouped.count(group, counted, num_segments=num_segments)
    return GroupReturns(
        outcome=jnp.where(included, outcome, 0),
        included=included,
        mean=grouped.rows(mean, group, included),
        std=grouped.rows(std, group, included),
        count=grouped.rows(count, group, included),
    )


@dataclass(frozen=True)
class EstimatorSettings:
    """What the config says about the base advantage; checked when built."""

    name: str
    unit: str
    ddof: int
    eps: float
    singleton: str
    whiten: bool = False  # normalised over the batch afterwards
    gamma: float = 1.0  # of returns-to-go (gigpo) and values (gae), a response
    omega: float = 1.0  # weight of gigpo's step advantage
    std: bool = True  # gigpo: scaled by the deviation, not only centred
    gae_lam: float = 1.0

    def __post_init__(self):
        if self.name not in ESTIMATORS:
            raise ValueError(f"unknown estimator {self.name!r}; known: {', '.join(sorted(ESTIMATORS))}")
        if self.unit not in UNITS:
            raise ValueError(f"unknown unit={self.unit!r}; known: {', '.join(UNITS)}")
        if self.singleton not in SINGLETONS:
            raise ValueError(f"unknown singleton={self.singleton!r}; known: {', '.join(SINGLETONS)}")
        if self.ddof < 0 or self.eps < 0:
            raise ValueError(f"ddof={self.ddof} and eps={self.eps} must not be negative")
        if not 0 <= self.gamma <= 1 or not 0 <= self.gae_lam <= 1:
            raise ValueError(f"gamma={self.gamma} and gae_lam={self.gae_lam} must lie in [0, 1]")

    @property
    def needs_value(self) -> bool:
        return self.name == "gae"

    @property
    def reads_rewards(self) -> bool:
        return self.name in ("gigpo", "gae")


def estimate(
    table: Any, value: Float[Array, " R"] | None = None, *, settings: EstimatorSettings
) -> Float[Array, " R"]:
    """Returns the advantage of every row of a response table.

    `table` has the response arrays `[R]` as attributes: outcome, reward, group, trajectory, turn, step_group,
    valid. `value` is what a value head says where each response begins; only "gae" reads it.
    """
    advantage = ESTIMATORS[settings.name](table, value, settings)
    if not settings.whiten:
        return advantage
    known = table.valid & jnp.isfinite(table.outcome)
    # Step rewards give the responses of a trajectory different advantages: each counts.
    unit = "response" if settings.reads_rewards else settings.unit
    return whitened(advantage, table.trajectory, known, unit=unit, ddof=settings.ddof, eps=settings.eps)


def _grpo(table: Any, value: Any, s: EstimatorSettings) -> Array:
    return grpo(*_groups(table), ddof=s.ddof, eps=s.eps, unit=s.unit, singleton=s.singleton)


def _gigpo(table: Any, value: Any, s: EstimatorSettings) -> Array:
    return gigpo(
        table.outcome,
        table.reward,
        table.group,
        table.trajectory,
        table.turn,
        table.step_group,
        table.valid,
        gamma=s.gamma,
        omega=s.omega,
        std=s.std,
        ddof=s.ddof,
        eps=s.eps,
        unit=s.unit,
        singleton=s.singleton,
    )


def _gae(table: Any, value: Any, s: EstimatorSettings) -> Array:
    if value is None:
        raise ValueError('estimator "gae" needs values; set learner.value_head=True')
    known = table.valid & jnp.isfinite(table.outcome)
    return gae(table.reward, value, table.trajectory, table.turn, known, gamma=s.gamma, lam=s.gae_lam)


ESTIMATORS: dict[str, Callable[[Any, Any, EstimatorSettings], Array]] = {
    "grpo": _grpo,
    "centred": lambda table, value, s: centred(*_groups(table), unit=s.unit, singleton=s.singleton),
    "rloo": lambda table, value, s: rloo(*_groups(table), unit=s.unit, singleton=s.singleton),
    "outcome": lambda table, value, s: outcome_itself(table.outcome, table.valid),
    "gigpo": _gigpo,
    "gae": _gae,
}


def _groups(table):
    return table.outcome, table.group, table.trajectory, table.valid


def _alone(advantage, raw, returns: GroupReturns, *, singleton: str):
    if singleton not in SINGLETONS:
        raise ValueError(f"unknown {singleton=}; known: {', '.join(SINGLETONS)}")
    lone = raw if singleton == "raw" else jnp.zeros_like(raw)
    advantage = jnp.where(returns.count == 1, lone, advantage)
    return jnp.where(returns.included, advantage, 0)
