"""Per-token KL estimates: numbers, gradients, clamps, masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.objective import kl

TRUE = jnp.ones((1, 3), bool)


def test_numbers():
    logp, logp_ref = jnp.array([[-1.0, -2.0, -0.5]]), jnp.array([[-1.0, -1.0, -2.5]])  # d = 0, 1, -2
    expected = {"k1": [[0, -1, 2]], "k2": [[0, 0.5, 2]], "k3": [[0, 0.71828183, 1.13533528]]}
    for kind, numbers in expected.items():
        np.testing.assert_allclose(kl.kl(logp, logp_ref, TRUE, kind=kind), numbers, rtol=1e-6)


def test_k3_is_exact_for_small_differences():
    # exp(d) - d - 1 in float32 would lose d^2 / 2 to rounding
    estimate = kl.kl(jnp.array([[-1e-3, 0.0, 0.0]]), jnp.zeros((1, 3)), TRUE, kind="k3")
    np.testing.assert_allclose(estimate[0, 0], 5.00167e-7, rtol=1e-3)


@pytest.mark.parametrize("kind", kl.KINDS)
def test_value_and_gradient_against_float64(kind):
    random = np.random.default_rng(0)
    logp, logp_ref = -random.gamma(1.0, 1.0, (1, 3)), -random.gamma(1.0, 1.0, (1, 3))
    d = logp_ref - logp
    value = {"k1": -d, "k2": d**2 / 2, "k3": np.exp(d) - d - 1}[kind]
    slope = {"k1": np.ones_like(d), "k2": -d, "k3": 1 - np.exp(d)}[kind]
    with jax.enable_x64():
        arguments = jnp.asarray(logp), jnp.asarray(logp_ref)
        result = kl.kl(*arguments, TRUE, kind=kind)
        gradient = jax.grad(lambda x: kl.kl(x, arguments[1], TRUE, kind=kind).sum())(arguments[0])
    np.testing.assert_allclose(result, value, rtol=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10)


def test_expected_gradient_under_the_policy_is_that_of_the_kl_for_k2_and_0_for_k1():
    # three tokens, policy softmax(z): E over the sampled token of each estimate's gradient, term by term
    z, reference = jnp.array([0.3, -1.0, 0.8]), jax.nn.log_softmax(jnp.array([1.0, 0.2, -0.4]))
    logp = jax.nn.log_softmax(z)
    exact = jax.jit(jax.grad(lambda z: jnp.sum(jax.nn.softmax(z) * (jax.nn.log_softmax(z) - reference))))(z)

    def expected(kind):
        def estimate(z):
            tokens = kl.kl(jax.nn.log_softmax(z)[None], reference[None], TRUE, kind=kind)
            return jnp.sum(jnp.exp(logp) * tokens[0])  # the sampling distribution is held fixed

        return jax.jit(jax.grad(estimate))(z)

    np.testing.assert_allclose(expected("k2"), exact, atol=1e-6)
    np.testing.assert_allclose(expected("k1"), 0, atol=1e-6)
    assert np.abs(exact).max() > 0.1


def test_clamps():
    logp, logp_ref = jnp.array([[-100.0, -3.0, -0.1]]), jnp.array([[-0.0, -0.1, -0.2]])

    def run(**clamps):
        return jax.value_and_grad(
            lambda x: (kl.kl(x, logp_ref, TRUE, kind="k3", **clamps) * jnp.arange(1.0, 4.0)).sum()
        )(logp)

    value, gradient = run()  # exp(20) - 21, not inf
    np.testing.assert_allclose(value, np.exp(20.0) - 21 + 2 * (np.exp(2.9) - 3.9) + 3 * 0.00483742, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[0, 2 * (1 - np.exp(2.9)), 3 * (1 - np.exp(-0.1))]], rtol=1e-5)
    value, gradient = run(output_clamp=10.0)
    np.testing.assert_allclose(value, 10 + 2 * 10 + 3 * 0.00483742, rtol=1e-6)
    np.testing.assert_allclose(gradient, [[0, 0, 3 * (1 - np.exp(-0.1))]], rtol=1e-5)
    assert not np.isfinite(run(input_clamp=0.0)[0])


@pytest.mark.parametrize("kind", kl.KINDS)
def test_nan_outside_the_mask_does_not_leak(kind):
    mask = jnp.array([[True, False, False]])
    logp, logp_ref = jnp.array([[-1.0, jnp.nan, -1.0]]), jnp.array([[-3.0, -1.0, jnp.inf]])
    value, gradient = jax.value_and_grad(lambda x: kl.kl(x, logp_ref, mask, kind=kind).sum())(logp)
    assert np.isfinite(value)
    assert gradient[0, 0] != 0
    np.testing.assert_array_equal(gradient[0, 1:], 0)


def test_unknown_kind_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown KL kind='k4'; known: k1, k2, k3"):
        kl.kl(jnp.zeros((1, 3)), jnp.zeros((1, 3)), TRUE, kind="k4")
