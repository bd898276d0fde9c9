"""EMPG: advantages scaled by the confidence of a step, plus a bonus for the clarity of the next one.

Entropy-Modulated Policy Gradients (Wang et al. 2025, arXiv 2509.09265, section 3). Unlike AEM it normalises over the
batch, adds a term that does not depend on the advantage, and centres the result.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.credit import grouped, trajectories


@dataclass(frozen=True)
class EmpgSettings:
    """What the config says about EMPG; checked when built."""

    k: float  # strength of the scaling g
    k_next: float  # strength of the clarity bonus f
    zeta: float  # weight of the bonus
    eps: float = 1e-8

    def __post_init__(self):
        if self.eps < 0:
            raise ValueError(f"eps={self.eps} must not be negative")


def modulated(
    advantage: Float[Array, " R"],
    entropy: Float[Array, " R"],
    trajectory: Int[Array, " R"],
    turn: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    settings: EmpgSettings,
) -> Float[Array, " R"]:
    """Returns `A * g(H) + zeta * f(H_next)`, centred over the batch's valid responses; 0 in other rows.

    `H` is the response's mean token entropy, min-max normalised over the batch; `g = exp(-k H)` over its batch mean,
    `f = exp(-k' H)` of the next response, 0 at the last of a trajectory. No gradient flows through it.
    """
    entropy = jax.lax.stop_gradient(grouped.wide(entropy))
    batch = jnp.zeros_like(trajectory)
    low = grouped.minimum(entropy, batch, valid, num_segments=1)[0]
    high = grouped.maximum(entropy, batch, valid, num_segments=1)[0]
    spread = high - low + settings.eps
    normalised = jnp.where(valid, entropy - low, 0) / jnp.where(spread > 0, spread, 1)
    confidence = jnp.exp(-settings.k * normalised)
    scale = confidence / grouped.mean(confidence, batch, valid, num_segments=1)[0].clip(
        jnp.finfo(jnp.float32).tiny
    )
    clarity = trajectories.following(jnp.exp(-settings.k_next * normalised), trajectory, turn, valid)
    value = jnp.where(valid, advantage * scale, 0) + settings.zeta * clarity
    centre = grouped.mean(value, batch, valid, num_segments=1)[0]
    return jax.lax.stop_gradient(jnp.where(valid, value - centre, 0))
