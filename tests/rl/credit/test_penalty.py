"""Where a penalty enters: numbers of every mode, padding, and what each mode does to a group of failures."""

import jax.numpy as jnp
import numpy as np

from rl.credit import estimators, penalty

# trajectory 0 has two turns and one penalty, trajectory 1 has two turns and two, row 4 is padding
OUTCOME = jnp.array([10.0, 10.0, 0.0, 0.0, jnp.nan])
PENALTY = jnp.array([0.0, -0.1, -0.1, -0.1, jnp.nan])
GROUP = jnp.zeros(5, jnp.int32)
TRAJECTORY = jnp.array([0, 0, 1, 1, 0])
VALID = jnp.array([True, True, True, True, False])


def compared(mode, outcome=OUTCOME):
    return penalty.compared_return(outcome, PENALTY, TRAJECTORY, VALID, mode=mode)


def test_compared_returns():
    expected = {
        "advantage": [10, 10, 0, 0],
        "none": [10, 10, 0, 0],
        "response": [10, 9.9, -0.1, -0.1],
        "return": [9.9, 9.9, -0.2, -0.2],
    }
    assert set(expected) == set(penalty.MODES)
    for mode, numbers in expected.items():
        np.testing.assert_allclose(compared(mode)[:4], numbers, rtol=1e-6, atol=1e-7, err_msg=mode)


def test_only_advantage_adds_after_normalisation_and_never_on_padding():
    for mode in penalty.MODES:
        added = penalty.added_advantage(PENALTY, VALID, mode=mode)
        expected = [0, -0.1, -0.1, -0.1, 0] if mode == "advantage" else [0] * 5
        np.testing.assert_allclose(added, expected, err_msg=mode)


def test_a_group_of_failures_learns_at_full_size_only_where_penalties_are_compared():
    failures = jnp.where(VALID, 0.0, jnp.nan)
    for mode, unit in (("advantage", "trajectory"), ("none", "trajectory")):
        base = estimators.grpo(compared(mode, failures), GROUP, TRAJECTORY, VALID, unit=unit)
        np.testing.assert_array_equal(base, 0)
    for mode, unit in (("return", "trajectory"), ("response", "response")):
        base = estimators.grpo(compared(mode, failures), GROUP, TRAJECTORY, VALID, unit=unit)
        assert np.abs(base).max() > 0.7
