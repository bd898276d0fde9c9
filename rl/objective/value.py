"""The loss of a value head, per response (PPO: Schulman et al. 2017, section 5; clipping as in its reference code)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def starts(response_id: Int[Array, "B T"], trained: Bool[Array, "B T"]) -> Bool[Array, "B T"]:
    """Returns the first token of each response: the activation that predicts it has seen the whole context."""
    before = jnp.pad(response_id, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return trained & (response_id != before)


def value_loss(
    value: Float[Array, "..."],
    old: Float[Array, "..."],
    target: Float[Array, "..."],
    mask: Bool[Array, "..."],
    *,
    clip: float,
) -> Float[Array, "..."]:
    """Returns `max((V - R)^2, (clip(V, V_old +- clip) - R)^2) / 2`, 0 outside the mask; `clip` 0 is off.

    Where the clipped value is the worse of the two, the gradient is 0.
    """
    value, old, target = (jnp.where(mask, x, 0) for x in (value, *jax.lax.stop_gradient((old, target))))
    plain = jnp.square(value - target)
    if clip <= 0:
        return plain / 2
    held = jnp.square(jnp.clip(value, old - clip, old + clip) - target)
    # selected, not max(): a maximum shares the gradient between equal arguments
    return jnp.where(held > plain, held, plain) / 2
