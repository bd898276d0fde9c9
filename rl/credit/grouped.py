"""Statistics of rows within segments: a group, a trajectory, a step group, a response.

Every function reads values `[R]`, their segment ids `[R]` and a mask `[R]`, and returns one number per
segment, `[S]` with the static `S = num_segments`; `rows` brings it back to the rows. Under jit the arrays are
global, so a segment that lies on several devices has one mean, one minimum and one maximum.

Rows outside the mask, or with an id outside `[0, S)`, have no effect: their value is replaced before any
arithmetic, so a NaN there reaches neither a result nor a gradient. Empty segments give 0. Values narrower
than float32 are widened. Ids are dense per batch (how the rows were sampled, never what they say), so `S = R`
always suffices.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def wide(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the values in float32, or in their own type when that is wider."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def inside(ids: Int[Array, " R"], valid: Bool[Array, " R"], *, num_segments: int) -> Bool[Array, " R"]:
    """Returns which rows belong to a segment: valid, and with an id in `[0, num_segments)`."""
    return valid & (ids >= 0) & (ids < num_segments)


def rows(
    statistic: Float[Array, " S"], ids: Int[Array, " R"], valid: Bool[Array, " R"]
) -> Float[Array, " R"]:
    """Returns each row's own segment statistic, 0 for rows outside every segment."""
    known = inside(ids, valid, num_segments=statistic.shape[0])
    return jnp.where(known, statistic[jnp.where(known, ids, 0)], 0)


def count(ids: Int[Array, " R"], valid: Bool[Array, " R"], *, num_segments: int) -> Float[Array, " S"]:
    """Returns the number of valid rows of each segment, as float32."""
    return total(jnp.ones(ids.shape, jnp.float32), ids, valid, num_segments=num_segments)


def total(
    values: Float[Array, " R"], ids: Int[Array, " R"], valid: Bool[Array, " R"], *, num_segments: int
) -> Float[Array, " S"]:
    """Returns the sum of each segment."""
    values, ids = _replaced(values, ids, valid, num_segments=num_segments, fill=0.0)
    return jax.ops.segment_sum(values, ids, num_segments=num_segments)


def mean(
    values: Float[Array, " R"], ids: Int[Array, " R"], valid: Bool[Array, " R"], *, num_segments: int
) -> Float[Array, " S"]:
    """Returns the mean of each segment; the mean of equal values is that value, bit for bit.

    Summed as distances from the segment's minimum: `n` equal values then cannot differ from their mean by a
    rounding error, which a division by `std + eps` would blow up into an advantage.
    """
    pivot = jax.lax.stop_gradient(minimum(values, ids, valid, num_segments=num_segments))
    distance = wide(values) - rows(pivot, ids, valid)
    size = count(ids, valid, num_segments=num_segments)
    return pivot + total(distance, ids, valid, num_segments=num_segments) / jnp.maximum(size, 1)


def std(
    values: Float[Array, " R"],
    ids: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    num_segments: int,
    ddof: int = 1,
) -> Float[Array, " S"]:
    """Returns the standard deviation of each segment with `n - ddof` in the denominator.

    0, with gradient 0, where a segment has at most `ddof` rows or equal values.
    """
    square = variance(values, ids, valid, num_segments=num_segments, ddof=ddof)
    positive = square > 0
    # sqrt has an infinite slope at 0: its input is guarded, or the gradient is NaN where the value is right
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1)), 0)


def variance(
    values: Float[Array, " R"],
    ids: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    num_segments: int,
    ddof: int = 1,
) -> Float[Array, " S"]:
    """Returns the variance of each segment, from centred values; 0 where it has at most `ddof` rows."""
    centre = mean(values, ids, valid, num_segments=num_segments)
    known = inside(ids, valid, num_segments=num_segments)
    square = jnp.square(jnp.where(known, wide(values) - rows(centre, ids, valid), 0))
    size = count(ids, valid, num_segments=num_segments)
    spread = total(square, ids, valid, num_segments=num_segments) / jnp.maximum(size - ddof, 1)
    return jnp.where(size > ddof, spread, 0)


def minimum(
    values: Float[Array, " R"], ids: Int[Array, " R"], valid: Bool[Array, " R"], *, num_segments: int
) -> Float[Array, " S"]:
    """Returns the least value of each segment."""
    replaced, routed = _replaced(values, ids, valid, num_segments=num_segments, fill=jnp.inf)
    least = jax.ops.segment_min(replaced, routed, num_segments=num_segments)
    return jnp.where(count(ids, valid, num_segments=num_segments) > 0, least, 0)


def maximum(
    values: Float[Array, " R"], ids: Int[Array, " R"], valid: Bool[Array, " R"], *, num_segments: int
) -> Float[Array, " S"]:
    """Returns the greatest value of each segment."""
    replaced, routed = _replaced(values, ids, valid, num_segments=num_segments, fill=-jnp.inf)
    greatest = jax.ops.segment_max(replaced, routed, num_segments=num_segments)
    return jnp.where(count(ids, valid, num_segments=num_segments) > 0, greatest, 0)


def first_rows(ids: Int[Array, " R"], valid: Bool[Array, " R"]) -> Bool[Array, " R"]:
    """Returns True at the first valid row of each segment: counted so, every trajectory counts once."""
    num_rows = ids.shape[0]
    known = inside(ids, valid, num_segments=num_rows)
    index = jnp.arange(num_rows)
    first = jax.ops.segment_min(index, jnp.where(known, ids, num_rows), num_segments=num_rows)
    return known & (first[jnp.where(known, ids, 0)] == index)


def quantile(values: Float[Array, " R"], valid: Bool[Array, " R"], *, level: float) -> Float[Array, ""]:
    """Returns the quantile of the valid values by linear interpolation (as numpy); 0 if there are none."""
    number = jnp.sum(valid)
    ordered = jnp.sort(jnp.where(valid, wide(values), jnp.inf))
    ordered = jnp.where(jnp.arange(values.shape[0]) < number, ordered, 0)
    position = level * jnp.maximum(number - 1, 0).astype(ordered.dtype)
    low = jnp.floor(position).astype(jnp.int32)
    high = jnp.minimum(low + 1, jnp.maximum(number - 1, 0))
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def _replaced(values, ids, valid, *, num_segments, fill):
    # an id of num_segments is out of range, and segment operations drop it
    known = inside(ids, valid, num_segments=num_segments)
    return jnp.where(known, wide(values), fill), jnp.where(known, ids, num_segments)
