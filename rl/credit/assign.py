"""From response rows to tokens: every token of a response shares its value (AEM, section 4.2, step 6)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def to_tokens(values: Float[Array, " R"], response_id: Int[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns each token's response value, 0 outside every response (`response_id` -1)."""
    known = (response_id >= 0) & (response_id < values.shape[0])
    return jnp.where(known, values[jnp.where(known, response_id, 0)], 0)
