"""Names and layouts of parameters outside, with literal arrays."""

import dataclasses

import jax
import numpy as np
import pytest

from model import params
from model.config import ModelConfig
from model.weights import names

CONFIG = ModelConfig(vocab_size=5, width=4, layers=2, heads=2, kv_heads=1, head_size=2, hidden=3)


def _name(leaf: str) -> names.Name:
    return next(name for name in names.table(CONFIG) if name.path[1] == leaf)


def test_layouts_of_torch_and_ours():
    # torch: row = head * E + element, column = input.
    outside = np.arange(16.0).reshape(4, 4)
    wq = _name("wq").to_ours(outside, (4, 2, 2))
    assert wq[3, 1, 0] == outside[1 * 2 + 0, 3]
    wo = _name("wo").to_ours(outside, (2, 2, 4))
    assert wo[1, 0, 3] == outside[3, 1 * 2 + 0]
    for leaf, ours in (("wq", wq), ("wo", wo)):
        np.testing.assert_array_equal(_name(leaf).to_outside(ours), outside)


def test_sizes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"expected shape \(4, 4\), got \(4, 5\)"):
        _name("wq").to_ours(np.zeros((4, 5)), (4, 2, 2))


@pytest.mark.parametrize(
    "fields", [{}, {"tied_head": False}, {"qkv_bias": True}, {"qk_norm": True, "tied_head": False}], ids=str
)
def test_table_covers_the_tree_and_layouts_are_inverse(fields: dict):
    config = dataclasses.replace(CONFIG, **fields)
    spec = params.spec(config)
    paths = [name.path for name in names.table(config)]
    assert sorted(paths) == sorted((section, leaf) for section in spec for leaf in spec[section])
    rng = np.random.default_rng(0)
    for name in names.table(config):
        shape = spec[name.path[0]][name.path[1]].shape[1 if name.stacked else 0 :]
        ours = rng.normal(size=shape)
        assert name.to_outside(ours).shape == name.outside_shape(shape)
        np.testing.assert_array_equal(name.to_ours(name.to_outside(ours), shape), ours)
    assert len(jax.tree.leaves(spec)) == len(paths)


def test_check_names_what_is_missing_and_unexpected():
    present = {name.key(layer) for name in names.table(CONFIG) for layer in range(2)}
    names.check(present, CONFIG)
    # A head stored beside a tied one, and constants of old files, are passed over.
    names.check(present | {"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}, CONFIG)
    wrong = present - {"model.norm.weight"} | {"model.layers.2.mlp.up_proj.weight"}
    with pytest.raises(
        ValueError, match=r"missing model.norm.weight; unexpected model.layers.2.mlp.up_proj.weight"
    ):
        names.check(wrong, CONFIG)
    untied = dataclasses.replace(CONFIG, tied_head=False)
    with pytest.raises(ValueError, match=r"tied_head=False\): missing lm_head.weight; unexpected nothing"):
        names.check(present, untied)


@pytest.mark.parametrize(
    ("gguf", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.11.attn_q.bias", "model.layers.11.self_attn.q_proj.bias"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("rope_freqs.weight", "rope_freqs.weight"),
    ],
)
def test_gguf_names(gguf: str, expected: str):
    assert names.from_gguf(gguf) == expected
