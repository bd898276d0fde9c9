"""The clipped surrogate and its ratios: numbers, gradients on both sides of every bound, masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.objective import surrogate

# one token a case: advantage, ratio, then with clips 0.2 / 0.3 and dual clip 3: loss, slope of the loss in log-ratio
CASES = [
    (2.0, 1.0, -2.0, -2.0),
    (2.0, 1.25, -2.5, -2.5),
    (2.0, 1.5, -2.6, 0.0),  # held high
    (2.0, 0.5, -1.0, -1.0),  # a good token made unlikely is pulled back
    (-2.0, 1.0, 2.0, 2.0),
    (-2.0, 0.9, 1.8, 1.8),
    (-2.0, 0.5, 1.6, 0.0),  # held low
    (-2.0, 2.0, 4.0, 4.0),  # a bad token made likely is pushed back
    (-2.0, 4.0, 6.0, 0.0),  # held by the dual clip
    (0.0, 4.0, 0.0, 0.0),
]
MASK = jnp.ones((1, len(CASES)), bool)


def columns():
    advantage, ratio, loss, slope = np.array(CASES, np.float32).T[:, None]
    return jnp.log(jnp.asarray(ratio)), jnp.asarray(advantage), loss, slope


def run(log_ratio, advantage, mask=MASK, clip_low=0.2, clip_high=0.3, dual_clip=3.0, **more):
    return surrogate.clipped(
        log_ratio, advantage, mask, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, **more
    )


def test_clipped_numbers_gradients_and_flags():
    log_ratio, advantage, loss, slope = columns()
    result = run(log_ratio, advantage)
    np.testing.assert_allclose(result.loss, loss, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(
        jax.grad(lambda x: run(x, advantage).loss.sum())(log_ratio), slope, rtol=1e-6, atol=1e-7
    )
    assert np.flatnonzero(result.clipped_high[0]).tolist() == [2]
    assert np.flatnonzero(result.clipped_low[0]).tolist() == [6]
    assert np.flatnonzero(result.clipped_dual[0]).tolist() == [8]


def test_clipped_is_the_textbook_minimum_in_float64():
    random = np.random.default_rng(0)
    log_ratio, advantage = random.normal(0, 1, (1, 10)), random.normal(0, 1, (1, 10))
    ratio = np.exp(log_ratio)
    objective = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.3) * advantage)
    dual = np.where(advantage < 0, np.maximum(objective, 3 * advantage), objective)
    with jax.enable_x64():
        arguments = jnp.asarray(log_ratio), jnp.asarray(advantage)
        np.testing.assert_allclose(run(*arguments, dual_clip=0.0).loss, -objective, rtol=1e-12)
        np.testing.assert_allclose(run(*arguments).loss, -dual, rtol=1e-12)


def test_on_policy_gradient_is_whole_even_with_clips_of_0():
    # a minimum() of two equal terms would halve it
    advantage = jnp.where(jnp.arange(10) % 2 == 0, 1.5, -0.5)[None]
    gradient = jax.grad(lambda x: run(x, advantage, clip_low=0.0, clip_high=0.0, dual_clip=0.0).loss.sum())(
        jnp.zeros((1, 10))
    )
    np.testing.assert_allclose(gradient, -advantage)


def test_the_log_ratio_is_clamped_before_exp():
    log_ratio = jnp.zeros((1, 10)).at[0, 0].set(500.0).at[0, 1].set(-500.0)
    advantage = -jnp.ones((1, 10))
    value, gradient = jax.value_and_grad(lambda x: run(x, advantage, dual_clip=0.0).loss[0, :2].sum())(
        log_ratio
    )
    np.testing.assert_allclose(value, np.exp(20.0) + 0.8, rtol=1e-6)
    np.testing.assert_array_equal(gradient[0, :2], 0)
    assert np.isinf(run(log_ratio, advantage, dual_clip=0.0, ratio_clamp=0.0).loss[0, 0])


def test_nan_outside_the_mask_does_not_leak():
    log_ratio, advantage, loss, slope = columns()
    keep = jnp.arange(len(CASES))[None] < 4
    dirty = jnp.where(keep, log_ratio, jnp.nan)
    result = run(dirty, jnp.where(keep, advantage, jnp.inf), keep)
    np.testing.assert_allclose(result.loss, np.where(keep, loss, 0), rtol=1e-6)
    gradient = jax.grad(lambda x: run(x, advantage, keep).loss.sum())(dirty)
    np.testing.assert_allclose(gradient, np.where(keep, slope, 0), rtol=1e-6)
    assert result.clipped_low.sum() + result.clipped_dual.sum() == 0


# ratios. Two responses: 0 has two tokens in row 0, 1 has three in row 1

RESPONSE_ID = jnp.array([[-1, 0, 0, -1], [1, 1, 1, -1]])
LENGTHS = jnp.array([2.0, 3.0, 0.0])
OLD = jnp.array([[jnp.nan, -1.0, -2.0, 0.0], [-1.0, -1.0, -1.0, jnp.inf]])
NEW = jnp.array([[0.0, -0.8, -2.4, jnp.nan], [-0.7, -1.0, -0.4, jnp.nan]])


def test_ratio_numbers():
    def ratio(kind):
        return surrogate.LOG_RATIOS[kind](NEW, OLD, RESPONSE_ID, LENGTHS, RESPONSE_ID >= 0)

    np.testing.assert_allclose(ratio("token"), [[0, 0.2, -0.4, 0], [0.3, 0, 0.6, 0]], atol=1e-6)
    for kind in ("sequence", "sequence_token"):
        np.testing.assert_allclose(ratio(kind), [[0, -0.1, -0.1, 0], [0.3, 0.3, 0.3, 0]], atol=1e-6)


def test_gradients_of_the_sequence_ratios():
    # d log s / d logp = 1 / length at every token; the token form has each token's own gradient, 1
    weight = jnp.array([[5.0, 1.0, 2.0, 5.0], [1.0, 1.0, 4.0, 5.0]])

    def gradient(kind):
        return jax.grad(
            lambda x: jnp.sum(
                weight * surrogate.LOG_RATIOS[kind](x, OLD, RESPONSE_ID, LENGTHS, RESPONSE_ID >= 0)
            )
        )(NEW)

    np.testing.assert_allclose(gradient("token"), [[0, 1, 2, 0], [1, 1, 4, 0]])
    np.testing.assert_allclose(gradient("sequence"), [[0, 1.5, 1.5, 0], [2, 2, 2, 0]], rtol=1e-6)
    np.testing.assert_allclose(gradient("sequence_token"), [[0, 1, 2, 0], [1, 1, 4, 0]])


@pytest.mark.parametrize("kind", surrogate.LOG_RATIOS)
def test_equal_policies_have_ratio_exactly_1(kind):
    log_ratio = surrogate.LOG_RATIOS[kind](NEW, NEW, RESPONSE_ID, LENGTHS, RESPONSE_ID >= 0)
    np.testing.assert_array_equal(log_ratio, 0)
