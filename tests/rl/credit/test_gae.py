"""Generalised advantage estimation: numbers, a float64 recursion, its two ends, missing rewards, no gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import estimators
from rl.credit.gae import gae

SIZE = 32


def columns(reward, value, trajectory, turn, valid=None):
    """Table columns, padded with rows of trajectory 0 that hold NaN and are not valid."""
    extra = SIZE - len(reward)
    valid = np.ones(len(reward), bool) if valid is None else np.asarray(valid)
    return (
        *(jnp.asarray(np.r_[x, [np.nan] * extra], jnp.float32) for x in (reward, value)),
        *(jnp.asarray(np.r_[x, [0] * extra], jnp.int32) for x in (trajectory, turn)),
        jnp.asarray(np.r_[valid, [False] * extra], bool),
    )


@functools.partial(jax.jit, static_argnames=("gamma", "lam"))
def _gae(reward, value, trajectory, turn, valid, gamma, lam):
    return gae(reward, value, trajectory, turn, valid, gamma=gamma, lam=lam)


def advantages(*table, gamma=0.9, lam=0.8):
    result = np.asarray(_gae(*columns(*table), gamma=gamma, lam=lam))
    assert (result[len(table[0]) :] == 0).all()
    return result[: len(table[0])]


def reference(reward, value, trajectory, turn, valid, *, gamma, lam):
    """Backwards over each trajectory in float64; no shared code. Also the returns-to-go and the TD errors."""
    found = np.zeros((3, len(reward)))
    for i in set(trajectory):
        rows = [r for r in np.argsort(turn) if trajectory[r] == i and valid[r] and np.isfinite(reward[r])]
        advantage = to_go = next_value = 0.0
        for r in reversed(rows):
            delta = float(reward[r]) + gamma * next_value - float(value[r])
            advantage = delta + gamma * lam * advantage
            to_go = float(reward[r]) + gamma * to_go
            found[:, r] = advantage, to_go, delta
            next_value = float(value[r])
    return found


def ragged(seed) -> tuple[np.ndarray, ...]:
    """6 trajectories of 1 to 5 turns in random order; NaN where not valid."""
    random = np.random.default_rng(seed)
    rows = []
    for trajectory in range(6):
        for turn in range(random.integers(1, 6)):
            rows.append((random.normal(), random.normal(), trajectory, turn, random.random() < 0.85))
    random.shuffle(rows)
    reward, value, trajectory, turn, valid = (np.array(column) for column in zip(*rows, strict=True))
    return (
        *(np.where(valid, x, np.nan).astype(np.float32) for x in (reward, value)),
        trajectory,
        turn,
        valid,
    )


def test_numbers():
    # deltas: 1 - 0.25 = 0.75 and 0 + 0.9 * 0.25 - 0.5 = -0.275; -0.275 + 0.72 * 0.75 = 0.265
    two = advantages([0.0, 1.0], [0.5, 0.25], [0, 0], [0, 1])
    np.testing.assert_allclose(two, [0.265, 0.75], rtol=1e-6)
    # a second trajectory: deltas 2 + 0.9 * 3 - 1 = 3.7, -1 + 0.9 * 2 - 3 = -2.2, 4 - 2 = 2
    # sums: 2; -2.2 + 0.72 * 2 = -0.76; 3.7 - 0.72 * 0.76 = 3.1528
    more = advantages(
        [0.0, 1.0, 2.0, -1.0, 4.0], [0.5, 0.25, 1.0, 3.0, 2.0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 2]
    )
    np.testing.assert_allclose(more, [0.265, 0.75, 3.1528, -0.76, 2], rtol=1e-5)


@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1.0, 0.95), (0.0, 0.5)])
def test_against_float64_loops(gamma, lam):
    for seed in range(5):
        table = ragged(seed)
        expected = reference(*table, gamma=gamma, lam=lam)[0]
        np.testing.assert_allclose(advantages(*table, gamma=gamma, lam=lam), expected, rtol=1e-5, atol=1e-5)


def test_lam_1_is_return_to_go_minus_value_and_lam_0_the_td_error():
    for seed in range(3):
        table = ragged(seed)
        _, to_go, delta = reference(*table, gamma=0.9, lam=0.3)
        value = np.where(table[4], table[1], 0)
        np.testing.assert_allclose(advantages(*table, lam=1.0), to_go - value, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(advantages(*table, lam=0.0), delta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_a_critic_that_knows_the_returns_leaves_nothing(lam):
    reward, _, trajectory, turn, valid = ragged(4)
    valid = np.ones_like(valid)
    reward = np.nan_to_num(reward)
    to_go = reference(reward, reward, trajectory, turn, valid, gamma=0.9, lam=1.0)[1]
    np.testing.assert_allclose(advantages(reward, to_go, trajectory, turn, lam=lam), 0, atol=1e-6)
    assert np.abs(to_go).max() > 0.5


def test_row_order_never_matters():
    table = ragged(2)
    order = np.random.default_rng(0).permutation(len(table[0]))
    shuffled = advantages(*(column[order] for column in table))
    np.testing.assert_allclose(shuffled, advantages(*table)[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_reward_is_passed_over(missing):
    rest = [0.5, 9.0, 0.25, 1.0], [0, 0, 0, 1], [0, 1, 2, 0]
    result = advantages([0.0, missing, 1.0, 3.0], *rest)
    # as if the response after it followed directly, and a neighbour that knows nothing of it
    np.testing.assert_allclose(result, [0.265, 0, 0.75, 2], rtol=1e-6)
    masked = advantages([0.0, 7.0, 1.0, 3.0], *rest, [True, False, True, True])
    np.testing.assert_array_equal(masked, result)


@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf])
def test_a_row_without_a_value_is_passed_over(missing):
    rest = [0, 0, 0, 1], [0, 1, 2, 0]
    result = advantages([0.0, 7.0, 1.0, 3.0], [0.5, missing, 0.25, 1.0], *rest)
    np.testing.assert_allclose(result, [0.265, 0, 0.75, 2], rtol=1e-6)
    masked = advantages([0.0, 7.0, 1.0, 3.0], [0.5, 9.0, 0.25, 1.0], *rest, [True, False, True, True])
    np.testing.assert_array_equal(masked, result)


def test_one_row_and_none():
    np.testing.assert_array_equal(advantages([3.0], [1.0], [0], [4]), [2])
    np.testing.assert_array_equal(advantages([3.0], [1.0], [0], [4], [False]), [0])
    empty = [jnp.zeros(0, kind) for kind in (jnp.float32, jnp.float32, jnp.int32, jnp.int32, bool)]
    assert gae(*empty, gamma=0.9, lam=0.8).shape == (0,)


def test_no_gradient_flows_through_it():
    reward, value, *rest = columns([0.0, np.nan, 1.0], [0.5, 0.1, 0.25], [0, 0, 0], [0, 1, 2])

    def total(reward, value):
        return jnp.sum(jnp.square(_gae(reward, value, *rest, gamma=0.9, lam=0.8)))

    for gradient in jax.grad(total, argnums=(0, 1))(reward, value):
        np.testing.assert_array_equal(gradient, 0)
    assert total(reward, value) > 0.1


def test_the_estimator_needs_values():
    settings = estimators.EstimatorSettings("gae", "trajectory", 1, 1e-6, "zero")
    assert settings.needs_value
    assert not estimators.EstimatorSettings("gigpo", "trajectory", 1, 1e-6, "zero").needs_value
    with pytest.raises(ValueError, match=r'estimator "gae" needs values; set learner\.value_head=True'):
        estimators.estimate(None, settings=settings)
