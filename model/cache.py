"""The key-value cache: one row of positions per slot, and how new positions get into it.

Not among the shape-checked modules: a pytree dataclass is rebuilt with other leaves by jax's transforms.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from model.config import ModelConfig
from sharding import rules

KEY_AXES = ("batch", "kv_heads", "head_size", "length")
VALUE_AXES = ("batch", "kv_heads", "length", "head_size")


@flax.struct.dataclass
class Cache:
    """Keys [slots, K, E, S] and values [slots, K, S, E] of each layer, rotated and in the config's dtype.

    A tuple of arrays, not one stacked array: each layer is then updated in place (donated) and read without a
    copy. How much of a row is filled is the owner's to know; what lies beyond is stale and must be masked.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]

    @property
    def length(self) -> int:
        """S, cache positions of a slot."""
        return self.keys[0].shape[3]


def empty_buffers(config: ModelConfig, *, rows: int, length: int) -> Cache:
    """A zeroed cache of `rows`, placed by the compiler (within a jitted function)."""
    keys = (rows, config.kv_heads, config.head_size, length)
    values = (rows, config.kv_heads, length, config.head_size)
    return Cache(
        keys=tuple(jnp.zeros(keys, config.dtype) for _ in range(config.layers)),
        values=tuple(jnp.zeros(values, config.dtype) for _ in range(config.layers)),
    )


def empty(config: ModelConfig, *, slots: int, length: int, mesh: Mesh | None = None) -> Cache:
    """A zeroed cache; with `mesh`, slots are split over its data axes and kv heads over tensor."""
    placed = None if mesh is None else shardings(config, mesh, slots=slots, length=length)
    return jax.jit(lambda: empty_buffers(config, rows=slots, length=length), out_shardings=placed)()


def shardings(config: ModelConfig, mesh: Mesh, *, slots: int, length: int) -> Any:
    """Tree of NamedSharding like the cache."""
    K, E = config.kv_heads, config.head_size
    keys = rules.sharding(mesh, KEY_AXES, (slots, K, E, length))
    values = rules.sharding(mesh, VALUE_AXES, (slots, K, length, E))
    placed: Any = (keys,) * config.layers, (values,) * config.layers
    return Cache(keys=placed[0], values=placed[1])


def view(cache: Cache, rows: jax.Array | None, *, past: int) -> Cache:
    """The first `past` positions of `rows` (all slots, without a copy of rows, when None)."""

    def cut(x: jax.Array, axis: int) -> jax.Array:
        x = jax.lax.slice_in_dim(x, 0, past, axis=axis)
        return x if rows is None else x[rows]

    return Cache(keys=tuple(cut(k, 3) for k in cache.keys), values=tuple(cut(v, 2) for v in cache.values))


def merge(cache: Cache, new: Cache, rows: jax.Array | None, starts: jax.Array, counts: jax.Array) -> Cache:
    """`cache` with the first counts[i] of the C new positions written at starts[i] of row rows[i] (of row i when
    None). `rows` must not repeat. starts + counts must not exceed the cache's length; C may, and C <= length.

    Only a window of C positions per row is touched: it is read, blended and written back, and moved left where
    it would hang over the end.
    """
    width, length = new.length, cache.length
    left = jnp.minimum(starts, length - width)
    # Window position w holds the new position w - shift, for 0 <= w - shift < counts.
    shift = starts - left
    source = jnp.arange(width) - shift[:, None]
    fresh = (source >= 0) & (source < counts[:, None])
    source = jnp.clip(source, 0, width - 1)
    rows = jnp.arange(starts.shape[0]) if rows is None else rows

    def write(index: jax.Array, old: jax.Array, add: jax.Array, axis: int) -> jax.Array:
        size = [1, *old.shape[1:]]
        size[axis] = width
        at = [rows[index], *[jnp.int32(0)] * (old.ndim - 1)]
        at[axis] = left[index]
        window = jax.lax.dynamic_slice(old, at, size)
        chosen = jnp.take(add[index][None], source[index], axis=axis).astype(window.dtype)
        keep = jnp.expand_dims(fresh[index], [a for a in range(old.ndim) if a != axis])
        return jax.lax.dynamic_update_slice(old, jnp.where(keep, chosen, window), at)

    def one(index: jax.Array, held: Cache) -> Cache:
        return Cache(
            keys=tuple(write(index, old, add, 3) for old, add in zip(held.keys, new.keys, strict=True)),
            values=tuple(write(index, old, add, 2) for old, add in zip(held.values, new.values, strict=True)),
        )

    return jax.lax.fori_loop(0, starts.shape[0], one, cache)
