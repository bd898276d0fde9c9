"""The parameter tree: one spec gives its shapes, logical axes and initial values.

Layers are stacked on a leading L axis (scanned in training); matrices are ordered [in, out].
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from model.config import ModelConfig
from sharding import rules, transfer

Params = dict[str, Any]

EMBED_STD = 0.02


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One parameter: `shape`, logical `axes` (names in sharding.rules) and `init`, which is "ones", "zeros" or
    the standard deviation of a normal distribution."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: float | str


def spec(config: ModelConfig) -> Params:
    """Tree of ParamSpec. Matrices start with variance 1 / fan-in; those that write into the residual stream are
    smaller by sqrt(2 layers) (GPT-2's rule), so that its scale does not depend on depth."""
    L, D, H, K, E, F = (
        config.layers,
        config.width,
        config.heads,
        config.kv_heads,
        config.head_size,
        config.hidden,
    )
    inward, residual = 1 / math.sqrt(D), 1 / math.sqrt(2 * L)

    def matrix(shape: tuple[int, ...], axes: tuple[str, ...], std: float) -> ParamSpec:
        return ParamSpec((L, *shape), ("layers", *axes), std)

    layers = {
        "attn_norm": ParamSpec((L, D), ("layers", None), "ones"),
        "wq": matrix((D, H, E), ("embed", "heads", "head_size"), inward),
        "wk": matrix((D, K, E), ("embed", "kv_heads", "head_size"), inward),
        "wv": matrix((D, K, E), ("embed", "kv_heads", "head_size"), inward),
        "wo": matrix((H, E, D), ("heads", "head_size", "embed"), residual / math.sqrt(H * E)),
        "mlp_norm": ParamSpec((L, D), ("layers", None), "ones"),
        "w_gate": matrix((D, F), ("embed", "mlp"), inward),
        "w_up": matrix((D, F), ("embed", "mlp"), inward),
        "w_down": matrix((F, D), ("mlp", "embed"), residual / math.sqrt(F)),
    }
    if config.qkv_bias:
        layers["bq"] = ParamSpec((L, H, E), ("layers", "heads", "head_size"), "zeros")
        layers["bk"] = ParamSpec((L, K, E), ("layers", "kv_heads", "head_size"), "zeros")
        layers["bv"] = ParamSpec((L, K, E), ("layers", "kv_heads", "head_size"), "zeros")
    if config.qk_norm:
        layers["q_norm"] = ParamSpec((L, E), ("layers", None), "ones")
        layers["k_norm"] = ParamSpec((L, E), ("layers", None), "ones")
    tree: Params = {
        "embed": {"weight": ParamSpec((config.vocab_size, D), ("vocab", "embed"), EMBED_STD)},
        "layers": layers,
        "final_norm": {"weight": ParamSpec((D,), (None,), "ones")},
    }
    if not config.tied_head:
        tree["head"] = {"weight": ParamSpec((D, config.vocab_size), ("embed", "vocab"), EMBED_STD)}
    if config.value_head:
        # Zeros: the first values are 0 and the first update moves them, whatever the weights beneath.
        tree["value_head"] = {
            "weight": ParamSpec((D,), (None,), "zeros"),
            "bias": ParamSpec((), (), "zeros"),
        }
    return tree


def shapes(config: ModelConfig) -> Params:
    """Tree of ShapeDtypeStruct, in the config's dtype."""
    dtype = jnp.dtype(config.dtype)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), spec(config))


def axes(config: ModelConfig) -> Params:
    """Tree of tuples of logical axis names."""
    return jax.tree.map(lambda leaf: leaf.axes, spec(config))


def shardings(config: ModelConfig, mesh: Mesh) -> Params:
    """Tree of NamedSharding on `mesh`."""
    return jax.tree.map(lambda leaf: rules.sharding(mesh, leaf.axes, leaf.shape), spec(config))


def init(key: jax.Array, config: ModelConfig, mesh: Mesh | None = None) -> Params:
    """Random parameters in the config's dtype, split over `mesh` when given.

    Drawn on the host: compiling a dozen generators takes seconds, and models too big for that are loaded, not drawn.
    The values depend on `key` (typed or raw) and the config, not on the mesh.
    """
    words = key if key.dtype == jnp.uint32 else jax.random.key_data(key)
    entropy = [int(word) for word in np.ravel(words)]
    leaves, structure = jax.tree.flatten(spec(config))
    dtype = jnp.dtype(config.dtype)
    made = [
        _initial(np.random.default_rng([*entropy, index]), leaf, dtype) for index, leaf in enumerate(leaves)
    ]
    tree = jax.tree.unflatten(structure, made)
    return jax.device_put(tree) if mesh is None else transfer.to_device(tree, mesh, axes(config))


def count(params: Any) -> int:
    """Number of parameters in a tree of arrays, shapes or specs."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def decode_layout(params: Params) -> Params:
    """The same parameters with "layers" as a list of L trees, the form `generate` unrolls.

    A stacked tree makes XLA copy every layer's slice at every decoded token. Raises nothing; a tree already in
    this form is returned as it is. It is a copy: memory for the layers once more while it lives.
    """
    stacked = params["layers"]
    if isinstance(stacked, list):
        return params
    depth = stacked["attn_norm"].shape[0]
    return {
        **params,
        "layers": [{name: leaf[index] for name, leaf in stacked.items()} for index in range(depth)],
    }


def _initial(rng: np.random.Generator, leaf: ParamSpec, dtype: np.dtype) -> np.ndarray:
    if leaf.init == "ones":
        return np.ones(leaf.shape, dtype)
    if leaf.init == "zeros":
        return np.zeros(leaf.shape, dtype)
    return (rng.standard_normal(leaf.shape, np.float32) * np.float32(leaf.init)).astype(dtype)
