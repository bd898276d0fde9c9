"""Over the vocabulary, block by block: log-probability and entropy of given tokens, and the KL of two contexts.

What is computed is that of the distribution that was sampled from: logits divided by the temperature.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """(logp, entropy) of `targets` under activations that predict them in place; see `score`."""

    def one(hidden: jax.Array, targets: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = layers.logits(params, jnp.where(mask[..., None], hidden, 0)) / temperature
        return _logp_entropy(z, jnp.where(mask, targets, 0), mask)

    return _in_blocks(one, (hidden, targets, mask), block=block)


def divergence(
    p: tuple[dict[str, Any], Float[Array, "B T D"]],
    q: tuple[dict[str, Any], Float[Array, "B T D"]],
    mask: Bool[Array, "B T"],
    *,
    temperature: float,
    block: int,
) -> Float[Array, "B T"]:
    """KL[p || q] in nats over the whole vocabulary at every token, float32, 0 where `mask` is False.

    `p` and `q` are (params, activations that predict the tokens in place): two contexts of one policy, or two
    policies. Differentiable in both; `block` as in `score`.
    """

    def one(hidden_p: jax.Array, hidden_q: jax.Array, mask: jax.Array) -> jax.Array:
        z_p, z_q = (
            layers.logits(params, jnp.where(mask[..., None], hidden, 0)) / temperature
            for params, hidden in ((p[0], hidden_p), (q[0], hidden_q))
        )
        log_p, log_q = jax.nn.log_softmax(z_p), jax.nn.log_softmax(z_q)
        return jnp.where(mask, jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1), 0.0)

    return _in_blocks(one, (p[1], q[1], mask), block=block)


def _in_blocks(one: Callable[..., Any], arrays: tuple[jax.Array, ...], *, block: int) -> Any:
    """`one` over blocks of about `block` of the `[B, T, ...]` tokens, its `[B, T]` results put together again.

    The scan goes over columns of T, so that rows stay on their devices when B is sharded.
    """
    rows, length = arrays[0].shape[:2]
    columns = min(length, max(1, block // rows))
    blocks = -(-length // columns)

    def split(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, blocks * columns - length)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(rows, blocks, columns, *x.shape[2:]).swapaxes(0, 1)

    def join(x: jax.Array) -> jax.Array:
        return x.swapaxes(0, 1).reshape(rows, blocks * columns)[:, :length]

    # checkpoint: the backward pass makes a block's logits again instead of keeping those of all blocks.
    step = jax.checkpoint(lambda parts: one(*parts))
    return jax.tree.map(join, jax.lax.map(step, tuple(map(split, arrays))))


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
