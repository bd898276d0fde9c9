"""Logits of the same tokens under transformers and under our decoder."""

import functools
import os
import subprocess
import sys
from pathlib import Path
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


def our_logits_as_users_get_them(
    weights: Path, tokens: np.ndarray, positions: np.ndarray, folder: Path
) -> np.ndarray:
    """`our_logits` of a weights file, in a process whose programs are optimised: conftest's sum in another order."""
    np.savez(folder / "given.npz", tokens=tokens, positions=positions)
    subprocess.run(
        [sys.executable, "-m", "tests.parity.logits", weights, folder / "given.npz", folder / "logits.npy"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"XLA_FLAGS": ""},
        timeout=300,
        check=True,
    )
    return np.load(folder / "logits.npy")


if __name__ == "__main__":
    from model.weights import pretrained

    weights, given, out = map(Path, sys.argv[1:])
    with np.load(given) as arrays:
        np.save(out, our_logits(*pretrained.load(weights), arrays["tokens"], arrays["positions"]))
