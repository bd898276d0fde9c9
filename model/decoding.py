"""The two programs of generation, over rows of a cache: feed prompts and sample once, or sample on and on.

The cache is read-only while tokens are made: new keys and values go into small buffers, all rows at the same
index, and are merged into the cache once at the end. Compiled, placed and donated by `generate.Generator`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from model import attention, cache, layers, sampling
from model.config import ModelConfig
from sharding import rules


def extend(
    params: dict[str, Any],
    held: cache.Cache,
    rows: jax.Array | None,
    tokens: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
    seeds: jax.Array,
    temperature: jax.Array,
    *,
    past: int,
    config: ModelConfig,
    top_k: int,
    top_p: float,
    stop_ids: tuple[int, ...],
) -> tuple[cache.Cache, jax.Array, jax.Array, jax.Array]:
    """(cache, first tokens, logp, stopped) after feeding the first counts[r] of tokens [R, W] at starts[r]."""
    params = layers.cast(params, config=config)
    width = tokens.shape[1]
    old = cache.view(held, rows, past=past)
    x = rules.constrain(layers.embed(params, tokens, config=config), ("batch", "length", None))
    cos, sin = layers.rope_table(starts[:, None] + jnp.arange(width), config=config)
    causal = jnp.arange(width)[None]
    keys, values = [], []
    for index, weights in enumerate(params["layers"]):
        q, k, v = layers.heads(x, weights, cos, sin, config=config)
        k, v = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
        if index + 1 == config.layers:
            # Only the last token's activations are read: the last layer needs no other query.
            final = jnp.maximum(counts - 1, 0)[:, None]
            q, x = (jnp.take_along_axis(y, jnp.expand_dims(final, range(2, y.ndim)), axis=1) for y in (q, x))
            causal = final
        mixed = attention.cached(q, old.keys[index], old.values[index], k, v, starts, causal)
        x = rules.constrain(layers.finish(x, mixed, weights, config=config), ("batch", "length", None))
        keys.append(k)
        values.append(v)
    held = cache.merge(held, cache.Cache(tuple(keys), tuple(values)), rows, starts, counts)
    token, logp = _draw(
        params, x, seeds, jnp.zeros_like(starts), temperature, config=config, top_k=top_k, top_p=top_p
    )
    return held, token, logp, _is_stop(token, stop_ids)


def decode(
    params: dict[str, Any],
    held: cache.Cache,
    rows: jax.Array | None,
    pending: jax.Array,
    starts: jax.Array,
    budget: jax.Array,
    seeds: jax.Array,
    made: jax.Array,
    temperature: jax.Array,
    *,
    past: int,
    chunk: int,
    config: ModelConfig,
    top_k: int,
    top_p: float,
    stop_ids: tuple[int, ...],
) -> tuple[cache.Cache, jax.Array, jax.Array, jax.Array, jax.Array]:
    """(cache, tokens [R, C], logp [R, C], counts [R], stopped [R]): row r feeds pending[r] and samples until it
    stops or has budget[r] tokens."""
    params = layers.cast(params, config=config)
    old = cache.view(held, rows, past=past)
    count = starts.shape[0]
    new = cache.empty_buffers(config, rows=count, length=chunk)

    def go_on(state: tuple[Any, ...]) -> jax.Array:
        step, *_, stopped = state
        return jnp.any((step < budget) & ~stopped)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, token, new, tokens, logps, counts, stopped = state
        alive = (step < budget) & ~stopped
        x = layers.embed(params, token[:, None], config=config)
        x = rules.constrain(x, ("batch", "length", None))
        cos, sin = layers.rope_table((starts + step)[:, None], config=config)
        keys, values = list(new.keys), list(new.values)
        for index, weights in enumerate(params["layers"]):
            q, k, v = layers.heads(x, weights, cos, sin, config=config)
            keys[index] = jax.lax.dynamic_update_slice_in_dim(keys[index], k.transpose(0, 2, 3, 1), step, 3)
            values[index] = jax.lax.dynamic_update_slice_in_dim(values[index], v.swapaxes(1, 2), step, 2)
            mixed = attention.cached(
                q, old.keys[index], old.values[index], keys[index], values[index], starts, step[None, None]
            )
            x = rules.constrain(layers.finish(x, mixed, weights, config=config), ("batch", "length", None))
        token, logp = _draw(
            params, x, seeds, made + step, temperature, config=config, top_k=top_k, top_p=top_p
        )
        token = jnp.where(alive, token, 0)
        tokens = jax.lax.dynamic_update_index_in_dim(tokens, jnp.where(alive, token, -1), step, 1)
        logps = jax.lax.dynamic_update_index_in_dim(logps, jnp.where(alive, logp, 0.0), step, 1)
        stopped = stopped | (alive & _is_stop(token, stop_ids))
        return (
            step + 1,
            token,
            cache.Cache(tuple(keys), tuple(values)),
            tokens,
            logps,
            counts + alive,
            stopped,
        )

    start = (
        jnp.int32(0),
        jnp.maximum(pending, 0),
        new,
        jnp.full((count, chunk), -1, jnp.int32),
        jnp.zeros((count, chunk), jnp.float32),
        jnp.zeros(count, jnp.int32),
        jnp.zeros(count, bool),
    )
    _, _, new, tokens, logps, counts, stopped = jax.lax.while_loop(go_on, body, start)
    return cache.merge(held, new, rows, starts, counts), tokens, logps, counts, stopped


def _draw(
    params: dict[str, Any],
    x: jax.Array,
    seeds: jax.Array,
    index: jax.Array,
    temperature: jax.Array,
    *,
    config: ModelConfig,
    top_k: int,
    top_p: float,
) -> tuple[jax.Array, jax.Array]:
    """(tokens, logp) of the next position of x [R, 1, D], keyed by response seed and token index."""
    hidden = layers.rms_norm(x[:, 0], params["final_norm"]["weight"], eps=config.norm_eps)
    keys = jax.vmap(lambda seed, i: jax.random.fold_in(jax.random.key(seed), i))(seeds, index)
    return sampling.sample(
        layers.logits(params, hidden), keys, temperature=temperature, top_k=top_k, top_p=top_p
    )


def _is_stop(tokens: jax.Array, stop_ids: tuple[int, ...]) -> jax.Array:
    return jnp.isin(tokens, jnp.asarray(stop_ids, jnp.int32)) if stop_ids else jnp.zeros(tokens.shape, bool)
