"""Log-probability and entropy of given tokens in one blocked pass (methods, section 1)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from model import decoder, layers
from model.config import ModelConfig


def score(
    params: dict[str, Any],
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    config: ModelConfig,
    temperature: float = 1.0,
    block: int = 512,
    remat: str = "none",
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(logp, entropy in nats), float32, aligned at the token described; 0 where `mask` is False.

    logp[b, t] = log p(tokens[b, t] | its segment before t); entropy is that of the same distribution, the one
    that was sampled from: logits divided by `temperature` (> 0). Differentiable in both. `block` is the number
    of tokens whose logits exist at a time, forward and backward (at least one column of B). A first token of a
    segment has no predecessor and scores 0.
    """
    hidden, mask = predicting(params, tokens, positions, segments, mask, config=config, remat=remat)
    return score_hidden(params, hidden, tokens, mask, temperature=temperature, block=block)


def predicting(
    params: dict[str, Any],
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    config: ModelConfig,
    remat: str = "none",
) -> tuple[Float[Array, "B T D"], Bool[Array, "B T"]]:
    """(activations that predict the tokens in place, `mask` without first tokens of segments)."""
    hidden = decoder.hidden_states(params, tokens, positions, segments, config=config, remat=remat)
    before = jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    mask = mask & (segments == before) & (segments > 0)
    # Shift right: the activation before a token predicts it.
    return jnp.pad(hidden, ((0, 0), (1, 0), (0, 0)))[:, :-1], mask


def score_hidden(
    params: dict[str, Any],
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    temperature: float,
    block: int,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(logp, entropy) of `targets` under activations that predict them in place; see `score`.

    The scan goes over columns of T, so that rows stay on their devices when B is sharded.
    """
    rows, length = targets.shape
    columns = min(length, max(1, block // rows))
    blocks = -(-length // columns)

    def split(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, blocks * columns - length)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(rows, blocks, columns, *x.shape[2:]).swapaxes(0, 1)

    # checkpoint: the backward pass makes a block's logits again instead of keeping those of all blocks.
    @jax.checkpoint
    def one(part: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        hidden, targets, mask = part
        hidden = jnp.where(mask[..., None], hidden, 0)
        z = layers.logits(params, hidden) / temperature
        return _logp_entropy(z, jnp.where(mask, targets, 0), mask)

    logp, entropy = jax.lax.map(one, (split(hidden), split(targets), split(mask)))

    def join(x: jax.Array) -> jax.Array:
        return x.swapaxes(0, 1).reshape(rows, blocks * columns)[:, :length]

    return join(logp), join(entropy)


def _logp_entropy(z: jax.Array, targets: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """logp = z_y - lse(z); H = lse(z) - sum softmax(z) z, both with z shifted by its maximum."""
    z = z - jax.lax.stop_gradient(z.max(-1, keepdims=True))
    weights = jnp.exp(z)
    total = weights.sum(-1)
    log_total = jnp.log(total)
    # A select and a sum, not a gather: its gradient is a select too, where a gather's is a scatter.
    chosen = jnp.where(jnp.arange(z.shape[-1]) == targets[..., None], z, 0.0).sum(-1)
    entropy = log_total - (weights * z).sum(-1) / total
    return jnp.where(mask, chosen - log_total, 0.0), jnp.where(mask, entropy, 0.0)
