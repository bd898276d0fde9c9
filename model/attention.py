"""Causal grouped-query attention: packed rows for training, and new tokens on a cache for generation.

Scores and softmax are float32; keys and values are never repeated over the heads that share them. Masked scores
are replaced by a finite floor before the maximum is taken, and a query that sees nothing returns 0. Keys are held
transposed, [B, K, E, S]: one query a row is then twice as fast on CPU as with [B, K, S, E].
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

FLOOR = -1e30
# Queries per block once a row is longer: bounds the score array to [B, H, QUERY_BLOCK, T].
QUERY_BLOCK = 512


def packed(
    q: Float[Array, "B T H E"],
    k: Float[Array, "B T K E"],
    v: Float[Array, "B T K E"],
    segments: Int[Array, "B T"],
) -> Float[Array, "B T H E"]:
    """Attention within rows that hold several documents: token t sees s <= t of the same non-zero segment."""
    length = q.shape[1]
    keys, values = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
    if length <= QUERY_BLOCK:
        return _attend(q, keys, values, _packed_mask(segments, segments, 0))

    # checkpoint: the scores of a block are made again in the backward pass instead of kept for all blocks.
    @jax.checkpoint
    def one(block: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        queries, query_segments, offset = block
        return _attend(queries, keys, values, _packed_mask(query_segments, segments, offset))

    blocks = math.ceil(length / QUERY_BLOCK)
    offsets = jnp.arange(blocks) * QUERY_BLOCK
    mixed = jax.lax.map(one, (_split(q, blocks), _split(segments, blocks), offsets))
    return mixed.swapaxes(0, 1).reshape(q.shape[0], blocks * QUERY_BLOCK, *q.shape[2:])[:, :length]


def cached(
    q: Float[Array, "B W H E"],
    past_k: Float[Array, "B K E P"],
    past_v: Float[Array, "B K P E"],
    new_k: Float[Array, "B K E C"],
    new_v: Float[Array, "B K C E"],
    past_length: Int[Array, " B"],
    last_new: Int[Array, "rows W"],
) -> Float[Array, "B W H E"]:
    """Attention of W queries on a cache: query w of row b sees the first past_length[b] past positions and the
    new positions 0..last_new[b, w] (rows = B, or 1 where it is the same for all; at least 0)."""
    if q.shape[1] > QUERY_BLOCK:
        blocks = math.ceil(q.shape[1] / QUERY_BLOCK)
        parts = _split(q, blocks), _split(last_new, blocks)
        mixed = jax.lax.map(
            lambda part: cached(part[0], past_k, past_v, new_k, new_v, past_length, part[1]), parts
        )
        return mixed.swapaxes(0, 1).reshape(q.shape[0], -1, *q.shape[2:])[:, : q.shape[1]]
    kv_heads, past, count = past_k.shape[1], past_k.shape[3], new_k.shape[3]
    queries = _group(q, kv_heads)
    seen = (jnp.arange(count) <= last_new[:, :, None])[:, None, None]
    new = jnp.where(seen, _scores(queries, new_k), FLOOR)
    if past == 0:
        return _ungroup(_mix(_softmax(new), new_v), q.dtype)
    seen = (jnp.arange(past) < past_length[:, None])[:, None, None, None]
    old = jnp.where(seen, _scores(queries, past_k), FLOOR)
    # One softmax over both parts, without joining them.
    top = jnp.maximum(old.max(-1, keepdims=True), new.max(-1, keepdims=True))
    old, new = jnp.exp(old - top), jnp.exp(new - top)
    total = old.sum(-1, keepdims=True) + new.sum(-1, keepdims=True)
    return _ungroup((_mix(old, past_v) + _mix(new, new_v)) / total, q.dtype)


def _packed_mask(query_segments: jax.Array, segments: jax.Array, offset: jax.Array | int) -> jax.Array:
    """[B, 1, 1, queries, T] of the positions that a query at `offset` + its index may see."""
    at = offset + jnp.arange(query_segments.shape[1])
    causal = jnp.arange(segments.shape[1]) <= at[:, None]
    same = (query_segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] > 0)
    return (same & causal)[:, None, None]


def _attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """q [B,W,H,E]; k [B,K,E,S]; v [B,K,S,E]; mask [B,1,1,W,S] -> [B,W,H,E]."""
    grouped = _group(q, k.shape[1])
    rows, kv_heads, group, width, size = grouped.shape
    mixed = _merged(grouped.reshape(rows, kv_heads, group * width, size), k, v, mask)
    return _ungroup(mixed.reshape(grouped.shape), q.dtype)


# Differentiated by hand: XLA's own gradient of the same formula takes twice the time on CPU, since it divides by
# the softmax's sum and reduces it again over arrays of the size of the scores.
@jax.custom_vjp
def _merged(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention with the queries of a kv head in one axis: q [B,K,M,E] for M = G*W, mask [B,1,1,W,S]; float32."""
    return _merged_forward(q, k, v, mask)[0]


def _merged_forward(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> tuple[jax.Array, tuple]:
    scores = _product(q, k)
    by_query = (*scores.shape[:2], -1, *mask.shape[3:])
    scores = jnp.where(mask, scores.reshape(by_query), FLOOR)
    weights = jnp.where(mask, _softmax(scores), 0.0).reshape(*scores.shape[:2], -1, scores.shape[-1])
    weights = weights.astype(v.dtype)
    mixed = _product(weights, v)
    return mixed, (q, k, v, weights, mixed)


def _merged_backward(kept: tuple, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, weights, mixed = kept
    # sum_s weights * d_weights, from the far smaller products of the output.
    centre = (gradient * mixed).sum(-1, keepdims=True)
    gradient = gradient.astype(v.dtype)
    d_scores = (weights * (_product(gradient, v.swapaxes(2, 3)) - centre)).astype(q.dtype)
    d_q = _product(d_scores, k.swapaxes(2, 3)).astype(q.dtype)
    d_k = _product(q.swapaxes(2, 3), d_scores).astype(k.dtype)
    return d_q, d_k, _product(weights.swapaxes(2, 3), gradient).astype(v.dtype), None


_merged.defvjp(_merged_forward, _merged_backward)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _group(q: jax.Array, kv_heads: int) -> jax.Array:
    """[B,W,H,E] -> [B,K,G,W,E]: head h reads kv head h // G; scaled by 1/sqrt(E)."""
    rows, width, heads, size = q.shape
    q = q * jnp.asarray(1 / math.sqrt(size), q.dtype)
    return q.reshape(rows, width, kv_heads, heads // kv_heads, size).transpose(0, 2, 3, 1, 4)


def _ungroup(mixed: jax.Array, dtype: jnp.dtype) -> jax.Array:
    rows, kv_heads, group, width, size = mixed.shape
    return mixed.transpose(0, 3, 1, 2, 4).reshape(rows, width, kv_heads * group, size).astype(dtype)


def _scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
    return jnp.einsum("bkgwe,bkes->bkgws", queries, keys, preferred_element_type=jnp.float32)


def _mix(weights: jax.Array, values: jax.Array) -> jax.Array:
    # Weights go down to the values' dtype for the product; the sum over positions stays float32.
    return jnp.einsum(
        "bkgws,bkse->bkgwe", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
    )


def _softmax(scores: jax.Array) -> jax.Array:
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _split(x: jax.Array, blocks: int) -> jax.Array:
    """[B, T, ...] -> [blocks, B, QUERY_BLOCK, ...], zero-padded."""
    missing = blocks * QUERY_BLOCK - x.shape[1]
    x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(x.shape[0], blocks, QUERY_BLOCK, *x.shape[2:]).swapaxes(0, 1)
