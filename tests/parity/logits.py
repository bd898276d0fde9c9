"""Logits of the same tokens under transformers and under our decoder."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model import decoder, layers
from model.config import ModelConfig


def reference_logits(model: Any, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits [B,T,V] of transformers."""
    import torch

    with torch.no_grad():
        # With a mask of ones, or jumps in the positions would be read as borders of packed documents.
        output = model(
            input_ids=torch.as_tensor(tokens),
            position_ids=torch.as_tensor(positions),
            attention_mask=torch.ones(tokens.shape, dtype=torch.long),
        )
    return output.logits.float().numpy()


@functools.partial(jax.jit, static_argnames="config")
def _logits(params: Any, tokens: jax.Array, positions: jax.Array, *, config: ModelConfig) -> jax.Array:
    segments = jnp.ones(tokens.shape, jnp.int32)
    hidden = decoder.hidden_states(params, tokens, positions, segments, config=config, remat="none")
    return layers.logits(params, hidden)


def our_logits(params: Any, config: ModelConfig, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Logits [B,T,V] of our decoder."""
    return np.asarray(_logits(params, jnp.asarray(tokens), jnp.asarray(positions), config=config))
