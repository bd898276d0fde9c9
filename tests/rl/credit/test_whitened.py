"""Credit without a group: the return itself, and advantages normalised over the batch (REINFORCE++, PPO)."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import estimators

SIZE = 32


def columns(values, trajectory, valid=None):
    """Table columns, padded with rows of trajectory 0 that hold NaN and are not valid."""
    extra = SIZE - len(values)
    valid = np.ones(len(values), bool) if valid is None else np.asarray(valid)
    return (
        jnp.asarray(np.r_[values, [np.nan] * extra], jnp.float32),
        jnp.asarray(np.r_[trajectory, [0] * extra], jnp.int32),
        jnp.asarray(np.r_[valid, [False] * extra], bool),
    )


def whitened(values, trajectory, valid=None, **scalars):
    result = np.asarray(estimators.whitened(*columns(values, trajectory, valid), **scalars))
    assert (result[len(values) :] == 0).all()
    return result[: len(values)]


def test_outcome_itself_is_the_return_of_known_rows_without_gradient():
    outcome, _, valid = columns([3.0, -1.0, np.nan, np.inf, 5.0], range(5), [True] * 4 + [False])
    result, gradient = jax.value_and_grad(lambda x: jnp.sum(estimators.outcome_itself(x, valid)))(outcome)
    assert result == 2
    np.testing.assert_array_equal(gradient, 0)
    np.testing.assert_array_equal(estimators.outcome_itself(outcome, valid)[:5], [3, -1, 0, 0, 0])


def test_whitened_numbers():
    np.testing.assert_allclose(whitened([1.0, 2.0, 3.0], [0, 1, 2]), [-0.999999, 0, 0.999999], rtol=1e-6)
    # mean 2, deviation of the population sqrt(2/3) = 0.8164966, plus eps 0.5
    population = whitened([1.0, 2.0, 3.0], [0, 1, 2], ddof=0, eps=0.5)
    np.testing.assert_allclose(population, [-0.7595918, 0, 0.7595918], rtol=1e-6)
    # a trajectory counts once: mean (4 + 0) / 2, deviation sqrt(8); by response: mean 8/3, deviation sqrt(16/3)
    np.testing.assert_allclose(whitened([4.0, 4.0, 0.0], [0, 0, 1]), [0.7071065, 0.7071065, -0.7071065])
    by_response = whitened([4.0, 4.0, 0.0], [0, 0, 1], unit="response")
    np.testing.assert_allclose(by_response, [0.5773500, 0.5773500, -1.1547000], rtol=1e-6)


@pytest.mark.parametrize("unit", estimators.UNITS)
def test_whitened_has_mean_0_and_deviation_1_over_the_batch(unit):
    for seed in range(4):
        random = np.random.default_rng(seed)
        trajectory, valid = random.integers(0, 9, 30), random.random(30) < 0.8
        values = np.where(valid, random.normal(2, 3, 9)[trajectory], np.nan)  # equal within a trajectory
        result = whitened(values, trajectory, valid, unit=unit)
        counted = np.flatnonzero(valid)
        if unit == "trajectory":
            counted = [min(np.flatnonzero(valid & (trajectory == i))) for i in set(trajectory[valid])]
        assert abs(result[counted].mean()) < 1e-5
        assert abs(result[counted].std(ddof=1) - 1) < 1e-4
        assert (result[~valid] == 0).all()
        order = random.permutation(30)
        shuffled = whitened(values[order], trajectory[order], valid[order], unit=unit)
        np.testing.assert_allclose(shuffled, result[order], rtol=1e-5, atol=1e-6)


def test_whitening_what_does_not_differ_gives_0():
    np.testing.assert_array_equal(whitened([0.1] * 3, [0, 1, 2]), 0)
    np.testing.assert_array_equal(whitened([5.0], [0]), 0)
    np.testing.assert_array_equal(whitened([5.0, np.nan], [0, 1], [False, False]), 0)
    np.testing.assert_array_equal(whitened([1.0, np.nan, 3.0], [0, 1, 2])[1], 0)


def test_no_gradient_flows_through_whitening():
    values, *rest = columns([1.0, 2.0, np.nan], [0, 1, 2])
    gradient = jax.grad(lambda x: jnp.sum(jnp.square(estimators.whitened(x, *rest))))(values)
    np.testing.assert_array_equal(gradient, 0)


def test_gigpo_is_whitened_over_responses():
    # only centred: 1, 0.5, -1, -0.5 of two trajectories; mean 0, deviation sqrt(2.5 / 3) = 0.9128709 over the four
    settings = estimators.EstimatorSettings("gigpo", "trajectory", 1, 0.0, "zero", whiten=True, std=False)
    table = SimpleNamespace(
        outcome=jnp.array([1.0, 1.0, 0.0, 0.0]),
        reward=jnp.array([0.0, 1.0, 0.0, 0.0]),
        group=jnp.zeros(4, jnp.int32),
        trajectory=jnp.array([0, 0, 1, 1]),
        turn=jnp.array([0, 1, 0, 1]),
        step_group=jnp.array([0, 1, 0, 2]),
        valid=jnp.ones(4, bool),
    )
    result = estimators.estimate(table, settings=settings)
    np.testing.assert_allclose(result, [1.0954451, 0.5477226, -1.0954451, -0.5477226], rtol=1e-6)


def test_reinforce_pp_compares_over_groups():
    # returns 10, 0 and 10, 10 of two tasks: mean 7.5, deviation 5; nobody is compared within a group
    settings = estimators.EstimatorSettings("outcome", "trajectory", 1, 1e-6, "zero", whiten=True)
    table = SimpleNamespace(
        **dict(zip(("outcome", "trajectory", "valid"), columns([10.0, 0.0, 10.0, 10.0], range(4))))
    )
    result = estimators.estimate(table, settings=settings)
    np.testing.assert_allclose(result[:4], [0.5, -1.5, 0.5, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(result[4:], 0)
