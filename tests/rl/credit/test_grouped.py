"""Segment statistics: numbers, an independent float64 reference, masks, padding, and gradients at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import grouped

STATISTICS = {
    "count": lambda v: len(v),
    "total": lambda v: v.sum(),
    "mean": lambda v: v.mean() if len(v) else 0.0,
    "std": lambda v: v.std(ddof=1) if len(v) > 1 else 0.0,
    "variance": lambda v: v.var(ddof=1) if len(v) > 1 else 0.0,
    "minimum": lambda v: v.min() if len(v) else 0.0,
    "maximum": lambda v: v.max() if len(v) else 0.0,
}


ROWS, SEGMENTS = 40, 12  # one shape for all, so few programs are compiled


def statistics(values, ids, valid, dtype=jnp.float32):
    """All of them, by name, of rows padded to one shape."""
    extra = ROWS - len(ids)
    values = jnp.concatenate([jnp.asarray(values, dtype), jnp.full(extra, jnp.nan, dtype)])
    ids = jnp.asarray(np.r_[ids, np.zeros(extra)], jnp.int32)
    valid = jnp.asarray(np.r_[valid, np.zeros(extra)], bool)
    return {"count": grouped.count(ids, valid, num_segments=SEGMENTS)} | {
        name: getattr(grouped, name)(values, ids, valid, num_segments=SEGMENTS)
        for name in STATISTICS
        if name != "count"
    }


def ragged(seed, num_rows=ROWS, num_segments=9):
    random = np.random.default_rng(seed)
    return (
        random.normal(3, 2, num_rows).astype(np.float32),
        random.integers(0, num_segments, num_rows).astype(np.int32),
        random.random(num_rows) < 0.7,
    )


def test_numbers():
    values = [1.0, 2.0, 4.0, 10.0, 7.0]
    ids = [0, 0, 0, 2, 2]
    valid = [True, True, True, True, False]
    expected = {
        "count": [3, 0, 1],
        "total": [7, 0, 10],
        "mean": [7 / 3, 0, 10],
        "variance": [7 / 3, 0, 0],
        "std": [1.5275252, 0, 0],
        "minimum": [1, 0, 10],
        "maximum": [4, 0, 10],
    }
    result = statistics(values, ids, valid)
    for name, numbers in expected.items():
        np.testing.assert_allclose(result[name], numbers + [0] * 9, rtol=1e-6, err_msg=name)


def test_ddof_0_is_the_population():
    # (1 + 4 + 16) / 3 - (7 / 3)^2 = 14 / 9, and one row has variance 0 / 1
    values = jnp.zeros(ROWS).at[:4].set(jnp.array([1.0, 2.0, 4.0, 9.0]))
    ids, valid = jnp.zeros(ROWS, jnp.int32).at[3].set(1), jnp.arange(ROWS) < 4
    population = grouped.variance(values, ids, valid, num_segments=SEGMENTS, ddof=0)
    np.testing.assert_allclose(population[:2], [14 / 9, 0], rtol=1e-6)


def test_against_float64_reference():
    for seed in range(8):
        values, ids, valid = ragged(seed)
        result = statistics(values, ids, valid)
        for name, function in STATISTICS.items():
            expected = [function(values.astype(np.float64)[(ids == s) & valid]) for s in range(SEGMENTS)]
            np.testing.assert_allclose(result[name], expected, rtol=2e-6, atol=2e-6, err_msg=name)


def test_mean_of_equal_values_is_that_value_bit_for_bit():
    numbers = np.asarray([0.1, 0.7, 10.0, 1e-3, 123456.7, -3.3, 1 / 3], np.float32)
    for size in (1, 3, 5):
        result = statistics(
            np.repeat(numbers, 5), np.repeat(np.arange(7), 5), np.tile(np.arange(5) < size, 7)
        )
        np.testing.assert_array_equal(result["mean"][:7], numbers)
        np.testing.assert_array_equal(result["std"], 0)


def test_rows_brings_statistics_back_and_gives_0_outside():
    statistic_ = jnp.array([5.0, 6.0])
    ids, valid = jnp.array([1, 0, 1, -1, 2, 0]), jnp.array([True, True, False, True, True, True])
    np.testing.assert_array_equal(grouped.rows(statistic_, ids, valid), [6, 5, 0, 0, 0, 5])


def test_rows_outside_the_mask_or_the_id_range_do_not_exist():
    values, ids, valid = ragged(3, num_rows=10, num_segments=3)
    alone = statistics(values, ids, valid)
    more = statistics(
        np.r_[values, np.nan, np.inf, 99.0, -np.inf],
        np.r_[ids, 0, -1, SEGMENTS, 1],
        np.r_[valid, False, True, True, False],
    )
    for name in STATISTICS:
        np.testing.assert_array_equal(alone[name], more[name], err_msg=name)


def test_gradients_are_finite_at_the_edges_and_nan_does_not_leak():
    # segments: 0 empty, 1 of one, 2 of equal values, 3 with a masked NaN; a valid row of no segment holds inf
    values = jnp.array([2.0, 5.0, 5.0, 1.0, 4.0, jnp.nan, jnp.inf])
    ids = np.array([1, 2, 2, 3, 3, 3, SEGMENTS])
    valid = np.array([True, True, True, True, True, False, True])
    gradients = jax.jit(
        jax.jacrev(lambda v: {name: s.sum() for name, s in statistics(v, ids, valid).items()})
    )(values)
    for name in set(STATISTICS) - {"count"}:
        assert np.isfinite(gradients[name]).all(), name
        assert (gradients[name][5:] == 0).all(), name
        assert np.abs(gradients[name][3:5]).max() > 0.1, name


def test_gradients_by_finite_differences_in_float64():
    values, ids, valid = ragged(1, num_rows=12, num_segments=3)
    weight = np.arange(SEGMENTS) - 1.5
    with jax.enable_x64():

        def f(v):
            result = statistics(v, ids, valid, jnp.float64)
            return {name: jnp.dot(jnp.asarray(weight), result[name]) for name in STATISTICS}

        def differences(v):
            steps = 1e-6 * jnp.eye(12)
            up, down = jax.vmap(lambda d: f(v + d))(steps), jax.vmap(lambda d: f(v - d))(steps)
            return jax.tree.map(lambda a, b: (a - b) / 2e-6, up, down)

        at = jnp.asarray(values, jnp.float64)
        numeric, exact = jax.jit(lambda v: (differences(v), jax.jacrev(f)(v)))(at)
        for name in STATISTICS:
            np.testing.assert_allclose(exact[name], numeric[name], atol=1e-7, err_msg=name)
        assert exact["std"].dtype == jnp.float64


def test_first_rows_marks_each_segment_once_whatever_the_order():
    ids = jnp.array([4, 2, 4, 2, 0, 0])
    valid = jnp.array([False, True, True, True, True, False])
    np.testing.assert_array_equal(grouped.first_rows(ids, valid), [False, True, True, False, True, False])


@pytest.mark.parametrize("level", [0.0, 0.1, 0.25, 0.5, 0.75, 1.0])
def test_quantile_is_numpys_on_the_valid_values(level):
    for seed in range(5):
        values, _, valid = ragged(seed)
        valid[1 + 7 * seed :] = False  # down to a single value
        valid[0] = True
        values = np.where(valid, values, np.nan).astype(np.float32)
        result = grouped.quantile(jnp.asarray(values), jnp.asarray(valid), level=level)
        np.testing.assert_allclose(result, np.quantile(values[valid].astype(np.float64), level), rtol=1e-5)


def test_quantile_of_nothing_is_0_with_gradient_0():
    run = jax.jit(jax.value_and_grad(lambda v: grouped.quantile(v, jnp.zeros(3, bool), level=0.5)))
    value, gradient = run(jnp.array([1.0, jnp.nan, 2.0]))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_narrow_values_are_widened():
    values = jnp.full(1000, 1.0, jnp.bfloat16)
    total = grouped.total(values, jnp.zeros(1000, jnp.int32), jnp.ones(1000, bool), num_segments=1)
    assert total.dtype == jnp.float32
    assert total[0] == 1000  # bfloat16 would stop at 256
