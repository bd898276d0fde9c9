"""From response rows to tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from rl.credit import assign


def test_tokens_share_their_responses_value_and_others_get_0():
    values = jnp.array([1.5, -2.0, 7.0])
    response_id = jnp.array([[-1, 0, 0, -1, 2], [1, -1, -1, 3, 1]])  # 3 is no row
    np.testing.assert_array_equal(
        assign.to_tokens(values, response_id), [[0, 1.5, 1.5, 0, 7], [-2, 0, 0, 0, -2]]
    )


def test_nan_of_a_response_without_tokens_does_not_leak():
    values = jnp.array([jnp.nan, 3.0])
    response_id = jnp.array([[-1, 1, -1]])
    np.testing.assert_array_equal(assign.to_tokens(values, response_id), [[0, 3, 0]])
    gradient = jax.grad(lambda v: assign.to_tokens(v, response_id).sum())(values)
    np.testing.assert_array_equal(gradient, [0, 1])
