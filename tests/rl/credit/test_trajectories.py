"""Sums along a trajectory: numbers, float64 loops, order, rows that are passed over, padding and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import trajectories

SIZE = 32  # every table is padded to it, so few shapes are compiled


def columns(values, trajectory, turn, valid=None, size=SIZE):
    """Table columns, padded with rows of trajectory 0 that hold NaN and are not valid."""
    extra = size - len(values)
    valid = np.ones(len(values), bool) if valid is None else np.asarray(valid)
    return (
        jnp.asarray(np.r_[values, [np.nan] * extra], jnp.float32),
        jnp.asarray(np.r_[trajectory, [0] * extra], jnp.int32),
        jnp.asarray(np.r_[turn, [1] * extra], jnp.int32),
        jnp.asarray(np.r_[valid, [False] * extra], bool),
    )


@functools.partial(jax.jit, static_argnames="discount")
def _discounted(values, trajectory, turn, valid, discount):
    return trajectories.discounted(values, trajectory, turn, valid, discount=discount)


def discounted(*table, discount):
    result = np.asarray(_discounted(*columns(*table), discount=discount))
    assert (result[len(table[0]) :] == 0).all()
    return result[: len(table[0])]


def following(*table):
    value = np.asarray(jax.jit(trajectories.following)(*columns(*table)))
    assert (value[len(table[0]) :] == 0).all()
    return value[: len(table[0])]


def later(r, trajectory, turn, valid):
    """Rows of the same trajectory from row r on, in the order of their turns."""
    rows = [q for q in range(len(turn)) if valid[q] and trajectory[q] == trajectory[r] and turn[q] >= turn[r]]
    return sorted(rows, key=lambda q: turn[q])


def reference(values, trajectory, turn, valid, *, discount):
    """Float64, a row at a time; no shared code."""
    sums, nexts = np.zeros(len(values)), np.zeros(len(values))
    for r in range(len(values)):
        if valid[r]:
            rows = later(r, trajectory, turn, valid)
            sums[r] = sum(discount**k * float(values[q]) for k, q in enumerate(rows))
            if len(rows) > 1:
                nexts[r] = values[rows[1]]
    return sums, nexts


def ragged(seed) -> tuple[np.ndarray, ...]:
    """Up to 6 trajectories of 1 to 5 turns with gaps in the turn numbers, in random order; NaN where not valid."""
    random = np.random.default_rng(seed)
    rows = []
    for trajectory in range(6):
        turns = np.sort(random.choice(12, random.integers(1, 6), replace=False))
        rows += [(random.normal(), trajectory, turn, random.random() < 0.8) for turn in turns]
    random.shuffle(rows)
    values, trajectory, turn, valid = (np.array(column) for column in zip(*rows, strict=True))
    return np.where(valid, values, np.nan).astype(np.float32), trajectory, turn, valid


# numbers and reference


def test_following_numbers():
    np.testing.assert_array_equal(following([5.0, 6.0, 7.0, 9.0], [0, 0, 0, 1], [0, 1, 2, 0]), [6, 7, 0, 0])


def test_discounted_numbers():
    # 0, 0, 1 at discount 1/2; the second trajectory: 4 + 2 / 2, 2
    sums = discounted([0.0, 0.0, 1.0, 4.0, 2.0], [0, 0, 0, 1, 1], [0, 1, 2, 0, 1], discount=0.5)
    np.testing.assert_array_equal(sums, [0.25, 0.5, 1, 5, 2])


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95, 1.0])
def test_against_float64_loops(discount):
    for seed in range(6):
        table = ragged(seed)
        sums, nexts = reference(*table, discount=discount)
        np.testing.assert_allclose(discounted(*table, discount=discount), sums, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(following(*table), nexts.astype(np.float32))
        assert nexts.any() and not nexts.all()


def test_a_trajectory_as_long_as_the_table():
    values, turn = np.ones(SIZE), np.arange(SIZE)
    sums = discounted(values, np.zeros(SIZE), turn, discount=0.95)
    np.testing.assert_allclose(sums, (1 - 0.95 ** (SIZE - turn)) / 0.05, rtol=1e-5)


# laws


def test_discount_1_sums_and_discount_0_keeps():
    values, trajectory, turn = [1.0, 2.0, 4.0, 8.0], [3, 3, 3, 5], [0, 1, 2, 7]
    np.testing.assert_array_equal(discounted(values, trajectory, turn, discount=1.0), [7, 6, 4, 8])
    np.testing.assert_array_equal(discounted(values, trajectory, turn, discount=0.0), values)


def test_row_order_never_matters():
    table = ragged(7)
    order = np.random.default_rng(0).permutation(len(table[0]))
    shuffled = [column[order] for column in table]
    base = discounted(*table, discount=0.95)
    np.testing.assert_allclose(discounted(*shuffled, discount=0.95), base[order], rtol=1e-6)
    np.testing.assert_array_equal(following(*shuffled), following(*table)[order])
    assert np.ptp(base) > 1


def test_trajectories_do_not_see_each_other():
    values, trajectory, turn, valid = ragged(3)
    other = discounted(np.where(trajectory == 2, 100.0, values), trajectory, turn, valid, discount=0.95)
    base = discounted(values, trajectory, turn, valid, discount=0.95)
    np.testing.assert_array_equal(other[trajectory != 2], base[trajectory != 2])
    assert (other != base).any()


def test_rows_that_are_not_valid_are_passed_over():
    table = [1.0, np.nan, 4.0], [0, 0, 0], [0, 1, 2], [True, False, True]
    np.testing.assert_array_equal(discounted(*table, discount=0.5), [3, 0, 4])
    np.testing.assert_array_equal(following(*table), [4, 0, 0])


@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf])
def test_a_sum_passes_over_a_value_that_is_not_finite(missing):
    rest = [0, 0, 0, 1, 1], [0, 1, 2, 0, 1]
    sums = discounted([1.0, missing, 4.0, 8.0, missing], *rest, discount=0.5)
    np.testing.assert_array_equal(sums, [3, 0, 4, 8, 0])


def test_ids_outside_the_table_belong_to_no_trajectory():
    table = [1.0, 2.0, 4.0, 8.0], [-1, -1, SIZE, SIZE], [0, 1, 0, 1]
    np.testing.assert_array_equal(discounted(*table, discount=0.5), 0)
    np.testing.assert_array_equal(following(*table), 0)


# edges


def test_one_row_and_no_valid_row():
    np.testing.assert_array_equal(discounted([3.0], [0], [5], discount=0.5), [3])
    np.testing.assert_array_equal(following([3.0], [0], [5]), [0])
    np.testing.assert_array_equal(discounted([3.0], [0], [5], [False], discount=0.5), [0])
    np.testing.assert_array_equal(following([3.0, 2.0], [0, 0], [0, 1], [False, False]), 0)


def test_a_table_of_one_row_and_of_none():
    for size in (0, 1):
        table = columns([2.0][:size], [0][:size], [0][:size], size=size)
        np.testing.assert_array_equal(_discounted(*table, discount=0.5), [2.0][:size])
        np.testing.assert_array_equal(jax.jit(trajectories.following)(*table), [0.0][:size])


def test_gradient_reaches_earlier_rows_and_no_padding():
    values, *rest = columns([1.0, np.nan, 2.0, 3.0], [0, 0, 0, 0], [0, 1, 2, 3], [True, False, True, True])
    gradient = jax.grad(lambda x: jnp.sum(_discounted(x, *rest, discount=0.5)))(values)
    np.testing.assert_array_equal(gradient[:4], [1, 0, 1.5, 1.75])
    np.testing.assert_array_equal(gradient[4:], 0)


def test_narrow_values_are_widened():
    narrow = jax.ShapeDtypeStruct((4,), jnp.bfloat16)
    rest = [jax.ShapeDtypeStruct((4,), kind) for kind in (jnp.int32, jnp.int32, bool)]
    assert jax.eval_shape(trajectories.following, narrow, *rest).dtype == jnp.float32
    sums = jax.eval_shape(functools.partial(trajectories.discounted, discount=0.5), narrow, *rest)
    assert sums.dtype == jnp.float32
