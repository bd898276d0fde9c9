"""Drawing the next token: temperature, top-k, top-p, one key per row."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


def sample(
    logits: Float[Array, "B V"],
    keys: Key[Array, " B"],
    *,
    temperature: float | jax.Array,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """(tokens, logp): row b is drawn with keys[b] alone, so that it does not depend on its neighbours.

    `temperature` 0 takes the most likely token (it may be a traced scalar: no compilation per value). `top_k` 0
    and `top_p` 1 keep all; top-k is applied first, and top-p keeps the smallest set of the most likely tokens whose
    probability (renormalised after top-k) reaches `top_p`; equal probabilities at the edge of either are kept.
    logp is that of the whole tempered distribution, before top-k and top-p; at temperature 0 that of temperature 1.
    """
    logits = logits.astype(jnp.float32)
    temperature = jnp.asarray(temperature, jnp.float32)
    greedy = temperature <= 0
    z = logits / jnp.where(greedy, 1.0, temperature)
    z = z - z.max(-1, keepdims=True)
    weights = jnp.exp(z)
    kept = _top_p(_top_k(weights, top_k), top_p)
    drawn = _inverse_cdf(kept, jax.vmap(jax.random.uniform)(keys))
    tokens = jnp.where(greedy, jnp.argmax(logits, -1).astype(jnp.int32), drawn)
    chosen = jnp.take_along_axis(z, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - jnp.log(weights.sum(-1))


def _top_k(weights: jax.Array, k: int) -> jax.Array:
    if k <= 0 or k >= weights.shape[-1]:
        return weights
    least = jax.lax.top_k(weights, k)[0][:, -1:]
    return jnp.where(weights >= least, weights, 0.0)


def _top_p(weights: jax.Array, p: float) -> jax.Array:
    if p >= 1:
        return weights
    ordered = jnp.sort(weights, axis=-1, descending=True)
    # Mass before each token: a token is kept while what precedes it has not reached p.
    before = jnp.cumsum(ordered, axis=-1) - ordered
    inside = before < p * weights.sum(-1, keepdims=True)
    least = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(weights >= least, weights, 0.0)


def _inverse_cdf(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index drawn in proportion to non-negative `weights` [B, V], by one number in [0, 1) a row.

    One random number a row instead of V (Gumbel): random bits would cost more than the decoder at small widths.
    Two levels of about sqrt(V), each summed by a triangular product, since a scan over V is slow.
    """
    rows, size = weights.shape
    block = math.ceil(math.sqrt(size))
    count = math.ceil(size / block)
    table = jnp.pad(weights, ((0, 0), (0, count * block - size))).reshape(rows, count, block)
    sums = table.sum(-1)
    running = _running(sums)
    target = uniform * running[:, -1]
    outer = _first(running > target[:, None], sums)
    inner = jnp.take_along_axis(table, outer[:, None, None], axis=1)[:, 0]
    start = jnp.take_along_axis(running - sums, outer[:, None], axis=1)
    index = _first(start + _running(inner) > target[:, None], inner)
    return (outer * block + index).astype(jnp.int32)


def _running(x: jax.Array) -> jax.Array:
    """Sums of x[:, :j+1]."""
    triangle = jnp.triu(jnp.ones((x.shape[-1], x.shape[-1]), x.dtype))
    return jax.lax.dot(x, triangle, precision=jax.lax.Precision.HIGHEST)


def _first(reached: jax.Array, weights: jax.Array) -> jax.Array:
    """First index that is reached and may be drawn; the likeliest where rounding left none."""
    allowed = reached & (weights > 0)
    return jnp.where(allowed.any(-1), jnp.argmax(allowed, -1), jnp.argmax(weights, -1))
