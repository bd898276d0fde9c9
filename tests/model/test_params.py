import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import params
from model.config import PRESETS, ModelConfig
from sharding.mesh import make_mesh

CONFIG = ModelConfig(vocab_size=16, width=8, layers=2, heads=4, kv_heads=2, head_size=4, hidden=24)
VARIANTS = [
    CONFIG,
    dataclasses.replace(CONFIG, qkv_bias=True, tied_head=False),
    dataclasses.replace(CONFIG, qk_norm=True, dtype="bfloat16"),
]


@pytest.mark.parametrize("config", VARIANTS, ids=lambda config: config.family)
def test_init_matches_spec(config):
    tree = params.init(jax.random.key(0), config)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), tree) == jax.tree.map(
        lambda x: (x.shape, x.dtype), params.shapes(config)
    )
    ranks = jax.tree.map(lambda leaf, axes: leaf.ndim == len(axes), tree, params.axes(config))
    assert all(jax.tree.leaves(ranks))


def test_optional_parameters_follow_the_config():
    assert {"bq", "bk", "bv"} <= set(params.spec(VARIANTS[1])["layers"])
    assert "head" in params.spec(VARIANTS[1]) and "head" not in params.spec(CONFIG)
    assert {"q_norm", "k_norm"} <= set(params.spec(VARIANTS[2])["layers"])


def test_initial_scales():
    config = dataclasses.replace(CONFIG, width=64, hidden=128, vocab_size=512)
    tree = params.init(jax.random.key(1), config)
    assert np.std(tree["layers"]["w_up"]) == pytest.approx(64**-0.5, rel=0.05)
    assert np.std(tree["layers"]["w_down"]) == pytest.approx(128**-0.5 / 2, rel=0.05)  # sqrt(2 layers) = 2
    assert np.std(tree["embed"]["weight"]) == pytest.approx(0.02, rel=0.05)
    assert np.all(tree["layers"]["attn_norm"] == 1)
    first, second = tree["layers"]["w_gate"]
    assert not np.allclose(first, second)


def test_known_sizes():
    counts = {
        name: params.count(params.shapes(PRESETS[name]))
        for name in ("smollm2-135m", "qwen2.5-1.5b", "llama3.1-8b")
    }
    assert counts == {
        "smollm2-135m": 134_515_008,
        "qwen2.5-1.5b": 1_543_714_304,
        "llama3.1-8b": 8_030_261_248,
    }


def test_decode_layout_unstacks_once():
    tree = params.init(jax.random.key(0), CONFIG)
    unstacked = params.decode_layout(tree)
    assert len(unstacked["layers"]) == 2
    np.testing.assert_array_equal(unstacked["layers"][1]["wq"], tree["layers"]["wq"][1])
    assert params.decode_layout(unstacked) is unstacked


def test_init_does_not_depend_on_the_mesh():
    if len(jax.devices()) < 8:
        pytest.skip("needs 8 (fake) devices")
    whole = params.init(jax.random.key(3), CONFIG)
    split = params.init(jax.random.key(3), CONFIG, make_mesh(2, 2, 2, jax.devices()[:8]))
    jax.tree.map(np.testing.assert_array_equal, whole, split)
    assert split["layers"]["wq"].sharding.shard_shape(split["layers"]["wq"].shape) == (2, 4, 2, 4)
    assert jnp.shape(split["embed"]["weight"].addressable_shards[0].data) == (8, 4)
