"""The clipped surrogate (PPO: Schulman et al. 2017, equation 7), with the ratio of a token or of a sequence.

A kind of ratio is one function of `(logp, logp_old, response_id, lengths, mask)` that returns log-ratios per
token, and one entry of `LOG_RATIOS`; clipping is the same for all.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Surrogate(NamedTuple):
    """Arrays [B, T], 0 or False outside the mask."""

    loss: Array
    ratio: Array
    clipped_low: Array  # bool: held at 1 - clip_low, advantage negative
    clipped_high: Array  # bool: held at 1 + clip_high, advantage positive
    clipped_dual: Array  # bool: held at dual_clip, advantage negative


def token_log_ratio(
    logp: Float[Array, "B T"],
    logp_old: Float[Array, "B T"],
    response_id: Int[Array, "B T"],
    lengths: Float[Array, " R"],
    mask: Bool[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns `logp - logp_old`, each token its own."""
    del response_id, lengths
    return jnp.where(mask, logp, 0) - jnp.where(mask, logp_old, 0)


def sequence_log_ratio(
    logp: Float[Array, "B T"],
    logp_old: Float[Array, "B T"],
    response_id: Int[Array, "B T"],
    lengths: Float[Array, " R"],
    mask: Bool[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns the mean of `logp - logp_old` over the response, at each of its tokens.

    GSPO: Zheng et al. 2025, equation 7.
    `lengths` are the responses' numbers of tokens. A response lies in one row, so micro-batches need no
    exchange.
    """
    num_responses = lengths.shape[0]
    difference = token_log_ratio(logp, logp_old, response_id, lengths, mask).ravel()
    ids = jnp.where(mask, response_id, num_responses).ravel()  # num_responses is out of range: dropped
    mean = jax.ops.segment_sum(difference, ids, num_segments=num_responses) / jnp.maximum(lengths, 1)
    return jnp.where(mask, mean[jnp.where(mask, response_id, 0)], 0)


def sequence_token_log_ratio(
    logp: Float[Array, "B T"],
    logp_old: Float[Array, "B T"],
    response_id: Int[Array, "B T"],
    lengths: Float[Array, " R"],
    mask: Bool[Array, "B T"],
) -> Float[Array, "B T"]:
    """Returns `logp - sg(logp) + sg(log s)`: the sequence's value, each token's gradient (GSPO, eq. 14)."""
    whole = jax.lax.stop_gradient(sequence_log_ratio(logp, logp_old, response_id, lengths, mask))
    logp = jnp.where(mask, logp, 0)
    return logp - jax.lax.stop_gradient(logp) + whole


LOG_RATIOS: dict[str, Callable[..., Array]] = {
    "token": token_log_ratio,
    "sequence": sequence_log_ratio,
    "sequence_token": sequence_token_log_ratio,
}


def clipped(
    log_ratio: Float[Array, "B T"],
    advantage: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
    ratio_clamp: float = 20.0,
) -> Surrogate:
    """Returns the loss `-min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)` of every token.

    `dual_clip` c > 1 bounds the loss of a negative advantage by `-c * A` (Ye et al. 2020, equation 5); 0 is
    off. The log-ratio is clamped to +-`ratio_clamp` before exp; 0 is off. A token whose loss is held by a
    bound has gradient 0; a token on the bound is not held.
    """
    log_ratio, advantage = jnp.where(mask, log_ratio, 0), jnp.where(mask, advantage, 0)
    if ratio_clamp > 0:
        log_ratio = jnp.clip(log_ratio, -ratio_clamp, ratio_clamp)
    ratio = jnp.exp(log_ratio)
    high = mask & (advantage > 0) & (ratio > 1 + clip_high)
    low = mask & (advantage < 0) & (ratio < 1 - clip_low)
    dual = mask & (advantage < 0) & (ratio > dual_clip) if dual_clip > 0 else jnp.zeros_like(mask)
    # selected, not min(): a minimum shares the gradient between equal arguments
    held = jnp.where(high, 1 + clip_high, jnp.where(low, 1 - clip_low, jnp.where(dual, dual_clip, ratio)))
    return Surrogate(
        loss=-held * advantage,
        ratio=jnp.where(mask, ratio, 0),
        clipped_low=low,
        clipped_high=high,
        clipped_dual=dual,
    )
