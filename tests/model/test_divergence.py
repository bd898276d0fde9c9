"""The full-vocabulary KL of two contexts: numbers, a float64 reference, gradients, masks, memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import scoring
from tests.model.test_scoring import largest


def heads(
    seed: int = 0, shape: tuple[int, int] = (2, 5), width: int = 4, vocab: int = 7
) -> tuple[jax.Array, ...]:
    """Two hidden states, two heads, a mask."""
    rng = np.random.default_rng(seed)
    hidden = [jnp.asarray(rng.normal(size=(*shape, width)), jnp.float32) for _ in range(2)]
    weights = [jnp.asarray(rng.normal(size=(vocab, width)), jnp.float32) for _ in range(2)]
    return *hidden, *weights, jnp.asarray(rng.random(shape) < 0.7)


def divergence(hidden_p, hidden_q, weight_p, weight_q, mask, *, block=4, temperature=0.8):
    def params(weight):
        return {"embed": {"weight": weight}}

    return scoring.divergence(
        (params(weight_p), hidden_p), (params(weight_q), hidden_q), mask, temperature=temperature, block=block
    )


def reference(hidden_p, hidden_q, weight_p, weight_q, mask, *, temperature=0.8):
    """Float64 numpy."""

    def log_softmax(hidden, weight):
        z = np.asarray(hidden, np.float64) @ np.asarray(weight, np.float64).T / temperature
        return z - np.log(np.exp(z).sum(-1, keepdims=True))

    p, q = log_softmax(hidden_p, weight_p), log_softmax(hidden_q, weight_q)
    return (np.exp(p) * (p - q)).sum(-1) * np.asarray(mask)


def two(p: float, q: float) -> float:
    """KL of two coins, through heads whose logits are (0, log odds)."""
    weight_p, weight_q = (jnp.array([[0.0], [np.log(x / (1 - x))]]) for x in (p, q))
    one = jnp.ones((1, 1, 1))
    return float(
        divergence(one, one, weight_p, weight_q, jnp.array([[True]]), temperature=1.0, block=1)[0, 0]
    )


def test_numbers():
    # 3/4 ln(3/4 / 1/2) + 1/4 ln(1/4 / 1/2), and the other way round
    assert two(0.75, 0.5) == pytest.approx(0.1308120, abs=1e-6)
    assert two(0.5, 0.75) == pytest.approx(0.1438410, abs=1e-6)
    assert two(0.3, 0.3) == 0


@pytest.mark.parametrize("block", [1, 3, 4, 100])
def test_against_float64_whatever_the_block(block: int):
    case = heads()
    np.testing.assert_allclose(divergence(*case, block=block), reference(*case), rtol=1e-5, atol=1e-6)


def test_gradient_in_both_contexts_and_both_heads():
    *arrays, mask = heads()
    mix = jnp.asarray(np.random.default_rng(1).normal(size=mask.shape), jnp.float32)

    def mixed(hidden_p, hidden_q, weight_p, weight_q):
        return (mix * divergence(hidden_p, hidden_q, weight_p, weight_q, mask)).sum()

    gradients = jax.grad(mixed, argnums=(0, 1, 2, 3))(*arrays)
    wide = [np.asarray(a, np.float64) for a in arrays]
    for which, gradient in enumerate(gradients):
        for index in list(np.ndindex(wide[which].shape))[::3]:
            sides = []
            for step in (1e-5, -1e-5):
                moved = [a.copy() for a in wide]
                moved[which][index] += step
                sides.append((np.asarray(mix) * reference(*moved, mask=mask)).sum())
            assert float(gradient[index]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-3, abs=1e-4)


def test_equal_contexts_have_neither_value_nor_gradient():
    hidden, _, weight, _, mask = heads()
    np.testing.assert_allclose(
        divergence(hidden, hidden, weight, weight, mask), 0, atol=1e-6
    )  # a few roundings
    gradient = jax.grad(lambda h: divergence(h, hidden, weight, weight, mask).sum())(hidden)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_what_is_not_asked_for_is_not_read():
    hidden_p, hidden_q, weight_p, weight_q, mask = heads()
    junk = jnp.where(mask[..., None], hidden_p, jnp.nan), jnp.where(mask[..., None], hidden_q, jnp.inf)

    def read(p, q):
        return divergence(p, q, weight_p, weight_q, mask)

    np.testing.assert_array_equal(read(*junk), read(hidden_p, hidden_q))
    for gradient in jax.grad(lambda p, q: read(p, q).sum(), argnums=(0, 1))(*junk):
        assert np.isfinite(gradient).all()


def test_large_logits_stay_finite():
    hidden_p, _, weight_p, _, mask = heads()
    value, gradient = jax.value_and_grad(lambda h: divergence(h, -h, weight_p, weight_p, mask).sum())(
        hidden_p * 1e4
    )
    assert np.isfinite(value) and np.isfinite(gradient).all() and value > 0


def test_no_array_of_tokens_by_vocabulary_exists():
    B, T, D, V, block = 2, 64, 8, 4096, 16
    hidden, weight = jax.ShapeDtypeStruct((B, T, D), jnp.float32), jax.ShapeDtypeStruct((V, D), jnp.float32)
    mask = jax.ShapeDtypeStruct((B, T), jnp.bool)

    def forward(*case):
        return divergence(*case, block=block)

    def backward(*case):
        return jax.grad(lambda *a: forward(*a, case[-1]).sum(), argnums=(0, 1, 2, 3))(*case[:-1])

    for function in (forward, backward):
        jaxpr = jax.make_jaxpr(function)(hidden, hidden, weight, weight, mask)
        assert largest(jaxpr.jaxpr) <= block * V
