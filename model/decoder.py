"""The decoder over whole packed rows: what scoring and training read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from model import attention, layers
from model.config import ModelConfig
from sharding import rules

# What the backward pass keeps of a layer: everything, only its input, or the outputs of its matrix products.
REMAT = ("none", "full", "dots")


def hidden_states(
    params: dict[str, Any],
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    *,
    config: ModelConfig,
    remat: str = "none",
) -> Float[Array, "B T D"]:
    """Final-normed activations, in the config's dtype; hidden[b, t] predicts tokens[b, t+1].

    `segments` is 0 in padding and 1.. in the documents packed in a row; `positions` counts within each. Padding
    may hold anything (out-of-range ids too): it is replaced before it is read, and its activations are finite.
    `remat` is one of "none", "full", "dots"; it changes memory and time, not values. Layers are scanned.
    """
    params = layers.cast(params, config=config)
    real = segments > 0
    cos, sin = layers.rope_table(jnp.where(real, positions, 0), config=config)
    x = layers.embed(params, jnp.where(real, tokens, 0), config=config)
    x = rules.constrain(x, ("batch", "length", None))

    def step(x: jax.Array, weights: dict[str, Any]) -> tuple[jax.Array, None]:
        mixed = attention.packed(*layers.heads(x, weights, cos, sin, config=config), segments)
        x = layers.finish(x, mixed, weights, config=config)
        return rules.constrain(x, ("batch", "length", None)), None

    x, _ = jax.lax.scan(_remat(step, remat), x, params["layers"])
    return layers.rms_norm(x, params["final_norm"]["weight"], eps=config.norm_eps)


def _remat(step: Any, policy: str) -> Any:
    if policy == "none":
        return step
    if policy == "full":
        return jax.checkpoint(step)
    if policy == "dots":
        return jax.checkpoint(step, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    raise ValueError(f"remat={policy!r} is not one of {REMAT}")
