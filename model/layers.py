"""The pieces of a decoder layer: RMS norm, rotary positions, projections, SwiGLU.

A pre-norm layer is `finish(x, attention(*heads(x)))`; what the attention sees is the caller's: packed rows in
`decoder`, a cache in `generate`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from model.config import ModelConfig


def rms_norm(
    x: Float[Array, "*batch D"], weight: Float[Array, " D"], *, eps: float
) -> Float[Array, "*batch D"]:
    """x / sqrt(mean(x^2) + eps) * weight, statistics in float32, result in x's dtype (Zhang & Sennrich 2019)."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * weight


def rope_frequencies(config: ModelConfig) -> np.ndarray:
    """Radians per position of each rotated pair, float32 [E/2], with Llama 3's scaling when configured.

    Computed in float32 on purpose: at position 10,000 one unit in the last place of a frequency is 5e-4 radians,
    and the reference implementation (transformers) rounds here.
    """
    half = np.arange(0, config.head_size, 2).astype(np.float32) / np.float32(config.head_size)
    # The power in float64, rounded once: numpy's float32 power is off by a unit where torch's is not.
    powers = np.power(config.rope_theta, half.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1.0) / powers
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelength = (2 * np.pi / frequencies).astype(np.float32)
    stretched = (frequencies / np.float32(scaling.factor)).astype(np.float32)
    # 0 at the long-wave edge of the band, 1 at the short-wave edge.
    smooth = (
        np.float32(scaling.original_positions) / wavelength - np.float32(scaling.low_freq_factor)
    ) / np.float32(scaling.high_freq_factor - scaling.low_freq_factor)
    blended = (1 - smooth) * stretched + smooth * frequencies
    is_long = wavelength > scaling.original_positions / scaling.low_freq_factor
    is_short = wavelength < scaling.original_positions / scaling.high_freq_factor
    return np.where(is_long, stretched, np.where(is_short, frequencies, blended)).astype(np.float32)


def rope_table(
    positions: Int[Array, "B T"], *, config: ModelConfig
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """(cos, sin) of position times frequency, float32; computed once and shared by all layers."""
    angles = positions[..., None].astype(jnp.float32) * rope_frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "B T heads E"], cos: Float[Array, "B T half"], sin: Float[Array, "B T half"]
) -> Float[Array, "B T heads E"]:
    """Rotary positions, "rotate half": element i is paired with i + E/2 (Su et al. 2021; Hugging Face's order)."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def heads(
    x: Float[Array, "B T D"], weights: dict[str, Any], cos: jax.Array, sin: jax.Array, *, config: ModelConfig
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(q [B,T,H,E], k [B,T,K,E], v [B,T,K,E]) of a layer's input, which is normed here; q and k rotated."""
    x = rms_norm(x, weights["attn_norm"], eps=config.norm_eps)
    q, k, v = (project(x, weights[name]) for name in ("wq", "wk", "wv"))
    if config.qkv_bias:
        q, k, v = q + weights["bq"], k + weights["bk"], v + weights["bv"]
    if config.qk_norm:
        q = rms_norm(q, weights["q_norm"], eps=config.norm_eps)
        k = rms_norm(k, weights["k_norm"], eps=config.norm_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def project(x: Float[Array, "B T D"], weight: Float[Array, "D ..."]) -> jax.Array:
    """x @ weight, [B, T, *outputs]: the weight's trailing axes are kept apart."""
    flat = weight.reshape(weight.shape[0], -1)
    return _dense(x, flat).reshape(*x.shape[:2], *weight.shape[1:])


# jax's own gradient for the weight asks for (dy^T x)^T, and XLA's CPU backend then computes dy through a transposed,
# cache-hostile loop; x^T dy is several times faster there and the same elsewhere.
@jax.custom_vjp
def _dense(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x @ weight


def _dense_forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ weight, (x, weight)


def _dense_backward(kept: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = kept
    # The barrier keeps what made x (recomputed elementwise chains) out of the transposing copy.
    x, dy = jax.lax.optimization_barrier((x, dy))
    return dy @ weight.T, jnp.einsum("bti,bto->io", x, dy).astype(weight.dtype)


_dense.defvjp(_dense_forward, _dense_backward)


# checkpoint: keeps the two factors for the backward pass, not the four intermediates of silu and the product.
@jax.checkpoint
def _gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(gate) * up


def swiglu(x: Float[Array, "B T D"], weights: dict[str, Any]) -> Float[Array, "B T D"]:
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""
    return project(_gated(project(x, weights["w_gate"]), project(x, weights["w_up"])), weights["w_down"])


def finish(
    x: Float[Array, "B T D"], mixed: Float[Array, "B T H E"], weights: dict[str, Any], *, config: ModelConfig
) -> Float[Array, "B T D"]:
    """The residual stream after a layer whose attention gave `mixed`: output projection, then the SwiGLU block."""
    size = mixed.shape[2] * mixed.shape[3]
    x = x + project(mixed.reshape(*mixed.shape[:2], size), weights["wo"].reshape(size, -1))
    return x + swiglu(rms_norm(x, weights["mlp_norm"], eps=config.norm_eps), weights)


def embed(params: dict[str, Any], tokens: Int[Array, "B T"], *, config: ModelConfig) -> Float[Array, "B T D"]:
    """Rows of the embedding, in the config's dtype. `tokens` must lie in 0..V-1."""
    return params["embed"]["weight"][tokens].astype(config.dtype)


def logits(params: dict[str, Any], hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
    """Float32 logits of final-normed activations, through the head or, when tied, the embedding."""
    if "head" in params:
        weight, order = params["head"]["weight"], "...d,dv->...v"
    else:
        weight, order = params["embed"]["weight"], "...d,vd->...v"
    return jnp.einsum(order, hidden, weight.astype(hidden.dtype), preferred_element_type=jnp.float32)


def cast(params: dict[str, Any], *, config: ModelConfig) -> dict[str, Any]:
    """Parameters in the dtype of the computation; no copy where they are already."""
    return jax.tree.map(lambda leaf: leaf.astype(config.dtype), params)
