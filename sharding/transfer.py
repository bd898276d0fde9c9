"""The one crossing between host arrays and device arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from sharding import rules


def to_device(tree: Any, mesh: Mesh, axes: Any) -> Any:
    """`tree` of host arrays placed on `mesh`.

    `axes` is either one tuple of logical axes for every leaf (cut to the leaf's rank: a leaf of lower rank takes
    the leading ones, one of higher rank is not split beyond them) or a tree like `tree` of such tuples. With
    several processes every process passes the same global arrays and keeps its shards.
    """
    if _is_axes(axes):
        axes = jax.tree.map(lambda leaf: _fit(axes, np.ndim(leaf)), tree)

    def put(leaf: Any, names: tuple[str | None, ...]) -> jax.Array:
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        target = rules.sharding(mesh, names, leaf.shape)
        if jax.process_count() == 1:
            return jax.device_put(leaf, target)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, target, lambda index: host[index])

    return jax.tree.map(put, tree, axes)


def to_host(tree: Any) -> Any:
    """`tree` as numpy arrays, whole on every process."""

    def get(leaf: Any) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        return np.asarray(leaf)

    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    return jax.tree.map(get, tree)


def _is_axes(axes: Any) -> bool:
    return isinstance(axes, tuple) and all(name is None or isinstance(name, str) for name in axes)


def _fit(axes: tuple[str | None, ...], rank: int) -> tuple[str | None, ...]:
    return axes[:rank] + (None,) * (rank - len(axes))
