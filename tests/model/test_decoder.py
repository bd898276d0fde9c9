import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import decoder, layers, params
from model.config import ModelConfig, RopeScaling
from tests.model import reference

CONFIG = ModelConfig(
    vocab_size=13, width=12, layers=2, heads=4, kv_heads=2, head_size=6, hidden=20, rope_theta=100.0
)
VARIANTS = {
    "llama": dataclasses.replace(CONFIG, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 16), tied_head=False),
    "qwen2": dataclasses.replace(CONFIG, qkv_bias=True),
    "qwen3": dataclasses.replace(CONFIG, qk_norm=True, kv_heads=1),
}


def parameters(config, seed=0):
    """Of order 1 everywhere, biases and norms included, so that every term shows."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape) + (x.ndim == 2), jnp.float32),
                        params.shapes(config))  # fmt: skip


def rows(*documents, length):
    """tokens, positions, segments [1, T] of documents packed in one row, zero-padded."""
    tokens, positions, segments = np.zeros((3, length), np.int32)
    at = 0
    for number, document in enumerate(documents, 1):
        span = slice(at, at + len(document))
        tokens[span], positions[span], segments[span] = document, range(len(document)), number
        at += len(document)
    return tuple(jnp.asarray(x)[None] for x in (tokens, positions, segments))


@pytest.mark.parametrize("family", sorted(VARIANTS))
def test_against_float64(family):
    config = VARIANTS[family]
    tree, tokens = parameters(config), [3, 1, 4, 1, 5, 9, 2, 6]
    got = decoder.hidden_states(tree, *rows(tokens, length=10), config=config)
    np.testing.assert_allclose(got[0, :8], reference.hidden(tree, tokens, config), rtol=1e-4, atol=1e-4)
    got = layers.logits(tree, got)
    np.testing.assert_allclose(got[0, :8], reference.logits(tree, tokens, config), rtol=1e-4, atol=2e-4)


def test_packed_equals_unpacked():
    tree, first, second = parameters(CONFIG), [3, 1, 4, 1, 5], [9, 2, 6]
    packed = decoder.hidden_states(tree, *rows(first, second, length=10), config=CONFIG)[0]
    for document, span in ((first, slice(0, 5)), (second, slice(5, 8))):
        alone = decoder.hidden_states(tree, *rows(document, length=10), config=CONFIG)[0]
        np.testing.assert_allclose(packed[span], alone[: len(document)], atol=1e-5)


def test_padding_does_not_leak_in_value_or_gradient():
    tree = parameters(CONFIG)
    tokens, positions, segments = rows([3, 1, 4], length=6)

    def loss(tree, tokens, positions):
        hidden = decoder.hidden_states(tree, tokens, positions, segments, config=CONFIG)
        return jnp.where(segments[..., None] > 0, hidden, 0).sum(), hidden

    clean = jax.value_and_grad(loss, has_aux=True)(tree, tokens, positions)
    dirty = jax.value_and_grad(loss, has_aux=True)(
        tree, tokens.at[0, 3:].set(jnp.array([-7, 10**6, 12])), positions.at[0, 3:].set(2**31 - 1)
    )
    jax.tree.map(np.testing.assert_array_equal, clean[1], dirty[1])
    np.testing.assert_array_equal(clean[0][1][0, :3], dirty[0][1][0, :3])
    assert np.isfinite(dirty[0][1]).all()


@pytest.mark.slow
def test_batch_permutation():
    tree = parameters(CONFIG)
    tokens = jax.random.randint(jax.random.key(0), (4, 6), 0, 13)
    positions, segments = jnp.tile(jnp.arange(6), (4, 1)), jnp.ones((4, 6), jnp.int32)
    order = jnp.array([2, 0, 3, 1])
    got = decoder.hidden_states(tree, tokens[order], positions, segments, config=CONFIG)
    want = decoder.hidden_states(tree, tokens, positions, segments, config=CONFIG)[order]
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_remat_changes_no_gradient():
    tree, row = parameters(CONFIG), rows([3, 1, 4, 1], length=4)

    def gradient(remat):
        return jax.jit(
            jax.grad(
                lambda tree: jnp.sin(decoder.hidden_states(tree, *row, config=CONFIG, remat=remat)).sum()
            )
        )(tree)

    want = gradient("none")
    for remat in ("full", "dots"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradient(remat), want
        )
    with pytest.raises(ValueError, match="remat='some' is not one of"):
        gradient("some")


@pytest.mark.slow
def test_bfloat16_follows_float32():
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    tree, row = params.init(jax.random.key(0), CONFIG), rows([3, 1, 4, 1], length=4)
    got = decoder.hidden_states(tree, *row, config=config)
    assert got.dtype == jnp.bfloat16
    want = decoder.hidden_states(tree, *row, config=CONFIG)
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.1)
