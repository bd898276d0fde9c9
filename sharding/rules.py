"""Where each logical axis lives on the mesh: the only place that builds a PartitionSpec."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

log = logging.getLogger(__name__)

# Logical axis -> mesh axes. "embed" names the width of a parameter; the width of an activation is never split.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "layers": (),
    "length": (),
    "head_size": (),
}

Axes = Sequence[str | None]


def partition(mesh: Mesh | AbstractMesh, axes: Axes, shape: Sequence[int] | None = None) -> PartitionSpec:
    """PartitionSpec of an array whose dimensions are the logical `axes` (None: not split).

    With `shape`, a dimension that its mesh axes do not divide is replicated and reported once per call in the
    log. Raises ValueError for an unknown logical axis or a `shape` of another rank.
    """
    if shape is not None and len(shape) != len(axes):
        raise ValueError(f"{shape=} and {axes=} differ in rank")
    entries: list[tuple[str, ...] | None] = []
    for position, axis in enumerate(axes):
        if axis is not None and axis not in RULES:
            raise ValueError(f"unknown logical {axis=}; known: {sorted(RULES)}")
        names = RULES[axis] if axis is not None else ()
        size = math.prod(mesh.shape[name] for name in names)
        if size > 1 and shape is not None and shape[position] % size:
            log.info(
                "axis %r of size %d does not divide by %d devices: replicated", axis, shape[position], size
            )
            names = ()
        entries.append(names or None)
    return PartitionSpec(*entries)


def sharding(mesh: Mesh, axes: Axes, shape: Sequence[int] | None = None) -> NamedSharding:
    """NamedSharding for `axes`; see `partition`."""
    return NamedSharding(mesh, partition(mesh, axes, shape))


def tree_shardings(mesh: Mesh, axes: Any, shapes: Any) -> Any:
    """NamedShardings of a tree: `axes` holds a tuple of logical axes where `shapes` holds an array or its shape."""
    return jax.tree.map(lambda leaf, names: sharding(mesh, names, leaf.shape), shapes, axes)


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def constrain(array: jax.Array, axes: Axes) -> jax.Array:
    """`array` with its layout fixed to `axes` on the mesh of the context (`jax.set_mesh`); as is without one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return array
    return jax.lax.with_sharding_constraint(array, partition(mesh, axes, array.shape))
