import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import attention


def random(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def naive(q, k, v, segments):
    """Float64, one query at a time."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros(q.shape)
    group = q.shape[2] // k.shape[2]
    for b, t, h in np.ndindex(*q.shape[:3]):
        seen = [s for s in range(t + 1) if segments[b][s] == segments[b][t] > 0]
        if seen:
            scores = np.array([q[b, t, h] @ k[b, s, h // group] for s in seen]) / math.sqrt(q.shape[3])
            weights = np.exp(scores - scores.max())
            out[b, t, h] = weights / weights.sum() @ v[b, seen, h // group]
    return out


SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [0, 1, 1, 1, 1, 1]])


def test_packed_numbers():
    # One head, E = 1: the second query has scores 2 * 0 and 2 * 1, weights softmax(0, 2) = (0.1192029, 0.8807971).
    q, k, v = (jnp.array(x).reshape(1, 2, 1, 1) for x in ([1.0, 2.0], [0.0, 1.0], [10.0, 20.0]))
    got = attention.packed(q, k, v, jnp.ones((1, 2), jnp.int32))
    np.testing.assert_allclose(got.ravel(), [10.0, 18.807971], rtol=1e-6)


def test_packed_against_float64():
    q, k, v = random(0, 2, 6, 4, 8), random(1, 2, 6, 2, 8), random(2, 2, 6, 2, 8)
    got = attention.packed(q, k, v, jnp.asarray(SEGMENTS))
    np.testing.assert_allclose(got, naive(q, k, v, SEGMENTS), atol=1e-6)
    assert np.all(got[0, 5] == 0) and np.all(got[1, 0] == 0)


def test_gradient_against_plain_autodiff():
    q, k, v = random(0, 2, 6, 4, 8), random(1, 2, 6, 2, 8), random(2, 2, 6, 2, 8)
    segments = jnp.asarray(SEGMENTS)

    def plain(q, k, v):
        k, v = jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2)
        mask = (segments[:, :, None] == segments[:, None]) & (segments[:, None] > 0) & jnp.tri(6, dtype=bool)
        scores = jnp.where(mask[:, None], jnp.einsum("bthe,bshe->bhts", q, k) / math.sqrt(8), -1e30)
        weights = jnp.where(mask[:, None], jax.nn.softmax(scores), 0)
        return jnp.einsum("bhts,bshe->bthe", weights, v)

    def gradients(function):
        return jax.grad(lambda *x: jnp.sin(function(*x)).sum(), argnums=(0, 1, 2))(q, k, v)

    for got, want in zip(
        gradients(lambda q, k, v: attention.packed(q, k, v, segments)), gradients(plain), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.slow
def test_query_blocks_change_nothing(monkeypatch):
    q, k, v = random(0, 2, 6, 2, 4), random(1, 2, 6, 1, 4), random(2, 2, 6, 1, 4)
    segments = jnp.asarray(SEGMENTS)

    def value_and_gradient():
        return jax.value_and_grad(lambda q: jnp.sin(attention.packed(q, k, v, segments)).sum())(q)

    whole = value_and_gradient()
    monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), value_and_gradient(), whole)


@pytest.mark.parametrize("block", [512, 2])
def test_cached_equals_packed(monkeypatch, block):
    monkeypatch.setattr(attention, "QUERY_BLOCK", block)
    q, k, v = random(3, 2, 7, 4, 8), random(4, 2, 7, 2, 8), random(5, 2, 7, 2, 8)
    want = naive(q, k, v, np.ones((2, 7), int))
    keys, values = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
    # Row 0 has 4 positions in the cache and 3 new ones, row 1 has 2 and 3; what lies beyond is stale.
    for row, past in ((0, 4), (1, 2)):
        new = slice(past, past + 3)
        got = attention.cached(
            q[row : row + 1, new],
            keys[row : row + 1, :, :, :5].at[:, :, :, past:].set(1e9),
            values[row : row + 1, :, :5].at[:, :, past:].set(-1e9),
            keys[row : row + 1, :, :, new],
            values[row : row + 1, :, new],
            jnp.array([past]),
            jnp.arange(3)[None],
        )
        np.testing.assert_allclose(got[0], want[row, new], atol=1e-6)


def test_large_scores_do_not_overflow():
    q = jnp.full((1, 3, 1, 2), 300.0)
    got = attention.packed(q, q, q, jnp.ones((1, 3), jnp.int32))
    np.testing.assert_allclose(got, 300.0)
