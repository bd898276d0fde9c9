"""Where the penalty of an invalid action enters the credit of the response that earned it."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.credit import grouped


def compared_return(
    outcome: Float[Array, " R"],
    penalty: Float[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    mode: str,
) -> Float[Array, " R"]:
    """The return that a group compares. `penalty` is <= 0 and that of the response's own step.

    "return": the episode's return with all its penalties. "response": with this response's own (as stacks do in which
    every turn is a sample). "advantage" and "none": the bare outcome; groups of equal outcomes then keep advantage 0,
    where a deviation made of penalties alone would be normalised to full size.
    """
    return MODES[mode](outcome, penalty, trajectory, valid)


def added_advantage(
    penalty: Float[Array, " R"], valid: Bool[Array, " R"], *, mode: str
) -> Float[Array, " R"]:
    """What is added to the advantage after normalisation: the penalty under "advantage", else 0."""
    return jnp.where(valid & (mode == "advantage"), penalty, 0.0)


def _episode(outcome: Array, penalty: Array, trajectory: Array, valid: Array) -> Array:
    total = grouped.total(penalty, trajectory, valid, num_segments=trajectory.shape[0])
    return outcome + grouped.rows(total, trajectory, valid)


MODES: dict[str, Callable[[Array, Array, Array, Array], Array]] = {
    "advantage": lambda outcome, penalty, trajectory, valid: outcome,
    "response": lambda outcome, penalty, trajectory, valid: outcome + penalty,
    "return": _episode,
    "none": lambda outcome, penalty, trajectory, valid: outcome,
}
