import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import layers
from model.config import ModelConfig, RopeScaling
from tests.model import reference

CONFIG = ModelConfig(
    vocab_size=16, width=8, layers=1, heads=2, kv_heads=1, head_size=4, hidden=12, rope_theta=100.0
)


def test_rms_norm_numbers():
    # mean square of (3, 4) is 12.5
    got = layers.rms_norm(jnp.array([[3.0, 4.0]]), jnp.array([1.0, 2.0]), eps=0.0)
    np.testing.assert_allclose(got, [[0.8485281, 2.2627417]], rtol=1e-6)
    np.testing.assert_array_equal(layers.rms_norm(jnp.zeros((1, 2)), jnp.ones(2), eps=1e-6), 0)


def test_rms_norm_keeps_the_dtype_and_float32_statistics():
    x = jnp.full((1, 4096), 16.0, jnp.bfloat16)  # the sum of squares would stall in bfloat16
    got = layers.rms_norm(x, jnp.ones(4096, jnp.bfloat16), eps=0.0)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, 1)


def test_rope_numbers():
    # frequencies 1 and 100^(-1/2) = 0.1; element i is paired with i + 2
    cos, sin = layers.rope_table(jnp.array([[0, 2]]), config=CONFIG)
    np.testing.assert_allclose(cos[0, 1], [-0.4161468, 0.9800666], rtol=1e-6)
    x = jnp.array([1.0, 0.0, 0.0, 1.0]).reshape(1, 1, 1, 4).repeat(2, 1)
    got = layers.rotate(x, cos, sin)[0, :, 0]
    np.testing.assert_array_equal(got[0], [1, 0, 0, 1])
    np.testing.assert_allclose(got[1], [-0.4161468, -0.1986693, 0.9092974, 0.9800666], rtol=1e-6)


def test_rope_scores_depend_on_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 4))

    def score(at_q, at_k):
        turned = [
            layers.rotate(x, *layers.rope_table(jnp.array([[at]]), config=CONFIG))
            for x, at in ((q, at_q), (k, at_k))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(5, 0), abs=1e-5)


def test_llama3_scaling_against_the_definition():
    config = dataclasses.replace(
        CONFIG, head_size=128, rope_theta=5e5, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192)
    )
    got, plain = (
        layers.rope_frequencies(config),
        layers.rope_frequencies(dataclasses.replace(config, rope_scaling=None)),
    )
    np.testing.assert_allclose(got, reference.frequencies(config), rtol=3e-6)
    ratio = plain / got
    assert np.all(ratio[:25] == 1) and np.all(ratio[-25:] == 8) and np.any((ratio > 1.01) & (ratio < 7.9))


def test_rope_is_accurate_at_large_positions():
    config = dataclasses.replace(CONFIG, head_size=8)
    cos, sin = layers.rope_table(jnp.array([[100_003]]), config=config)
    # The product is rounded to float32 (as in transformers); its cosine must not lose more.
    angles = (np.float32(100_003) * layers.rope_frequencies(config)).astype(np.float64)
    np.testing.assert_allclose(cos[0, 0], np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(sin[0, 0], np.sin(angles), atol=1e-6)


def test_swiglu_numbers():
    weights = {
        "w_gate": jnp.array([[1.0, -1.0]]),
        "w_up": jnp.array([[2.0, 3.0]]),
        "w_down": jnp.array([[1.0], [10.0]]),
    }
    # silu(1) = 0.7310586, silu(-1) = -0.2689414
    got = layers.swiglu(jnp.ones((1, 1, 1)), weights)
    np.testing.assert_allclose(got, [[[2 * 0.7310586 - 30 * 0.2689414]]], rtol=1e-6)


def test_projection_gradients_are_those_of_the_plain_product():
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    weight = jax.random.normal(jax.random.key(1), (4, 2, 5))

    def loss(project):
        return jax.grad(lambda x, w: jnp.sin(project(x, w)).sum(), argnums=(0, 1))(x, weight)

    for got, want in zip(
        loss(layers.project), loss(lambda x, w: jnp.einsum("bti,ihe->bthe", x, w)), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_logits_are_float32_through_head_or_embedding():
    hidden = jax.random.normal(jax.random.key(0), (3, 4)).astype(jnp.bfloat16)
    weight = jax.random.normal(jax.random.key(1), (5, 4)).astype(jnp.bfloat16)
    tied = layers.logits({"embed": {"weight": weight}}, hidden)
    untied = layers.logits({"embed": {"weight": weight}, "head": {"weight": weight.T}}, hidden)
    assert tied.dtype == jnp.float32
    want = np.asarray(hidden, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(tied, want, atol=1e-5)
    np.testing.assert_allclose(untied, want, atol=1e-5)
