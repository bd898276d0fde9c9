"""A linear value head on the decoder's final activations, for PPO."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from model import params as model_params
from model.config import ModelConfig


def values(params: dict[str, Any], hidden: Float[Array, "B T D"]) -> Float[Array, "B T"]:
    """The expected return where each activation stands, float32 whatever the model computes in."""
    head = params["value_head"]
    wide = hidden.astype(jnp.float32)
    return wide @ head["weight"].astype(jnp.float32) + head["bias"].astype(jnp.float32)


def add(params: dict[str, Any], config: ModelConfig, shardings: dict[str, Any]) -> dict[str, Any]:
    """`params` with a value head that says 0 everywhere, placed by `shardings`; one that is there is kept."""
    if "value_head" in params:
        return params
    spec = model_params.spec(config)["value_head"]
    zeros = {name: jnp.zeros(leaf.shape, jnp.float32) for name, leaf in spec.items()}
    return {**params, "value_head": jax.device_put(zeros, shardings["value_head"])}
