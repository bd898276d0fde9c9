"""Along a trajectory: what follows a response, and discounted sums of what is still to come.

Rows may stand in any order: a response's place is its `turn`. Rows that are not valid are passed over, as if the
response after them followed directly.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.credit import grouped


def following(
    values: Float[Array, " R"], trajectory: Int[Array, " R"], turn: Int[Array, " R"], valid: Bool[Array, " R"]
) -> Float[Array, " R"]:
    """Returns the value of the next response of the same trajectory, 0 at the last and in rows that are not valid."""
    order, continues, known = _order(trajectory, turn, valid)
    ordered = jnp.where(known, grouped.wide(values), 0)[order]
    return _back(jnp.where(continues, jnp.roll(ordered, -1), 0), order)


def discounted(
    values: Float[Array, " R"],
    trajectory: Int[Array, " R"],
    turn: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    discount: float,
) -> Float[Array, " R"]:
    """Returns `sum_{k >= t} discount^(k - t) values_k` over the trajectory, 0 in rows that are not valid.

    A value that is not finite makes its row not valid: 0 times it would reach the other trajectories of the scan.
    With step rewards it is the discounted return-to-go (GiGPO: Feng et al. 2025, section 4.2); with TD errors and
    `discount = gamma * lambda` it is GAE's sum (Schulman et al. 2016, equation 16).
    """
    order, continues, known = _order(trajectory, turn, valid & jnp.isfinite(values))
    ordered = jnp.where(known, grouped.wide(values), 0)[order]
    factor = jnp.where(continues, jnp.asarray(discount, ordered.dtype), 0)

    def join(later, earlier):  # y = value + factor * y_next, composed from the end
        return later[0] * earlier[1] + earlier[0], later[1] * earlier[1]

    sums, _ = jax.lax.associative_scan(join, (ordered, factor), reverse=True)
    return jnp.where(known, _back(sums, order), 0)


def _order(trajectory: Array, turn: Array, valid: Array) -> tuple[Array, Array, Array]:
    """Rows by trajectory and turn, where the next row of that order goes on with the same one, and the known rows."""
    num_rows = trajectory.shape[0]
    known = grouped.inside(trajectory, valid, num_segments=num_rows)
    segment = jnp.where(known, trajectory, num_rows)  # unknown rows last
    order = jnp.lexsort((turn, segment))
    ordered = segment[order]
    continues = (ordered == jnp.roll(ordered, -1)) & (ordered < num_rows)
    return order, continues & (jnp.arange(num_rows) < num_rows - 1), known


def _back(ordered: Array, order: Array) -> Array:
    return jnp.zeros_like(ordered).at[order].set(ordered)
