"""Generalised advantage estimation over the responses of a trajectory (Schulman et al. 2016, section 3).

A step is one response: its value is read where the response begins, and the episode ends after the last one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.credit import grouped, trajectories


def gae(
    reward: Float[Array, " R"],
    value: Float[Array, " R"],
    trajectory: Int[Array, " R"],
    turn: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    gamma: float,
    lam: float,
) -> Float[Array, " R"]:
    """Returns `sum_k (gamma lam)^(k - t) delta_k`, `delta_t = r_t + gamma V_{t+1} - V_t`, V = 0 after the end.

    `lam = 1` is the return-to-go minus the value, `lam = 0` the TD error. Rows whose reward or value is not finite are
    treated as not valid. No gradient flows through it.
    """
    reward, value = jax.lax.stop_gradient((grouped.wide(reward), grouped.wide(value)))
    valid = valid & jnp.isfinite(reward) & jnp.isfinite(value)
    reward, value = jnp.where(valid, reward, 0), jnp.where(valid, value, 0)
    following = trajectories.following(value, trajectory, turn, valid)
    delta = reward + gamma * following - value
    return trajectories.discounted(delta, trajectory, turn, valid, discount=gamma * lam)
