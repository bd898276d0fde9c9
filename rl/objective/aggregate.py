"""How token losses become one number: a weight per token, so that the loss is `sum(weight * loss)`.

The denominators are those of the whole batch that one optimizer step sees. They are counted first, added over
its micro-batches, and given to every micro-batch: the sum of the micro-batch losses is then the loss of the
batch, and so is its gradient, whatever the lengths. A "sequence" is one response.

| name | weight of a token of response r |
|---|---|
| token_mean | 1 / tokens (DAPO: Yu et al. 2025, equation 8) |
| seq_mean_token_mean | 1 / (length_r * responses) (GRPO) |
| seq_mean_token_sum | 1 / responses |
| seq_mean_token_sum_norm | 1 / (responses * constant_length) (Dr. GRPO: Liu et al. 2025) |
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Denominators(NamedTuple):
    """Counts of trained tokens; those of micro-batches add up (`add`)."""

    tokens: Array  # [] float32
    responses: Array  # [] float32, responses with at least one token
    lengths: Array  # [R] float32, tokens of each response


def token_mask(response_id: Int[Array, "B T"], valid: Bool[Array, " R"]) -> Bool[Array, "B T"]:
    """Returns which tokens are trained on: those of a response that is valid."""
    known = (response_id >= 0) & (response_id < valid.shape[0])
    return known & valid[jnp.where(known, response_id, 0)]


def to_tokens(
    values: Float[Array, " R"], response_id: Int[Array, "B T"], mask: Bool[Array, "B T"]
) -> Float[Array, "B T"]:
    """Returns each token's response value (AEM, section 4.2, step 6: every token shares it), 0 outside the mask."""
    return jnp.where(mask, values[jnp.where(mask, response_id, 0)], 0)


def denominators(response_id: Int[Array, "B T"], valid: Bool[Array, " R"]) -> Denominators:
    """Returns the counts of these token rows. A response lies in one row, so counts of different rows add."""
    mask = token_mask(response_id, valid)
    num_responses = valid.shape[0]
    ids = jnp.where(mask, response_id, num_responses).ravel()  # num_responses is out of range: dropped
    lengths = jax.ops.segment_sum(mask.ravel().astype(jnp.float32), ids, num_segments=num_responses)
    return Denominators(
        tokens=jnp.sum(lengths), responses=jnp.sum(lengths > 0).astype(jnp.float32), lengths=lengths
    )


def add(*parts: Denominators) -> Denominators:
    """Returns the counts of several micro-batches together."""
    return Denominators(*(functools.reduce(jnp.add, field) for field in zip(*parts, strict=True)))


def weights(
    response_id: Int[Array, "B T"],
    valid: Bool[Array, " R"],
    counts: Denominators,
    *,
    aggregation: str,
    constant_length: float = 1.0,
) -> Float[Array, "B T"]:
    """Returns the weight of every token, 0 outside the responses trained on; all 0 when there are none."""
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"unknown {aggregation=}; known: {', '.join(AGGREGATIONS)}")
    mask = token_mask(response_id, valid)
    tokens, responses = jnp.maximum(counts.tokens, 1), jnp.maximum(counts.responses, 1)
    length = jnp.maximum(counts.lengths, 1)[jnp.where(mask, response_id, 0)]
    return jnp.where(mask, AGGREGATIONS[aggregation](tokens, responses, length, constant_length), 0)


AGGREGATIONS: dict[str, Callable[[Array, Array, Array, float], Array]] = {
    "token_mean": lambda tokens, responses, length, constant: 1 / tokens,
    "seq_mean_token_mean": lambda tokens, responses, length, constant: 1 / (length * responses),
    "seq_mean_token_sum": lambda tokens, responses, length, constant: 1 / responses,
    "seq_mean_token_sum_norm": lambda tokens, responses, length, constant: 1 / (responses * constant),
}
