"""The value head: numbers, its place in the parameter tree, and that nothing else notices it."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import params, scoring, value_head
from model.config import ModelConfig
from model.weights import pretrained
from rl import optimizer
from sharding.mesh import make_mesh

PLAIN = ModelConfig(
    vocab_size=16, width=8, layers=1, heads=2, kv_heads=2, head_size=4, hidden=12, tied_head=False
)
CONFIG = dataclasses.replace(PLAIN, value_head=True)


def test_numbers():
    tree = {"value_head": {"weight": jnp.array([3.0, 4.0]), "bias": jnp.float32(0.5)}}
    hidden = jnp.array([[[1.0, 2.0], [0.0, -1.0]]])
    np.testing.assert_array_equal(value_head.values(tree, hidden), [[11.5, -3.5]])


def test_gradients():
    tree = {"value_head": {"weight": jnp.array([3.0, 4.0]), "bias": jnp.float32(0.5)}}
    hidden = jnp.array([[[1.0, 2.0], [0.0, -1.0]]])
    ours, theirs = jax.grad(lambda t, h: value_head.values(t, h).sum(), argnums=(0, 1))(tree, hidden)
    np.testing.assert_array_equal(ours["value_head"]["weight"], [1, 1])
    assert ours["value_head"]["bias"] == 2
    np.testing.assert_array_equal(theirs, [[[3, 4], [3, 4]]])


def test_values_are_float32_whatever_the_model_computes_in():
    tree = {"value_head": {"weight": jnp.full(400, 1.0), "bias": jnp.zeros(())}}
    said = value_head.values(tree, jnp.full((1, 1, 400), 1.0078125, jnp.bfloat16))  # exact in bfloat16
    assert said.dtype == jnp.float32
    assert said[0, 0] == 403.125  # bfloat16 would say 404


def test_a_fresh_head_says_0_and_the_rest_is_drawn_as_without_it():
    with_it, without = params.init(jax.random.key(0), CONFIG), params.init(jax.random.key(0), PLAIN)
    head = with_it.pop("value_head")
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(head))
    assert jax.tree.map(jnp.shape, head) == {"weight": (8,), "bias": ()}
    jax.tree.map(np.testing.assert_array_equal, with_it, without)
    assert "value_head" not in params.spec(PLAIN)


def test_add_gives_what_the_spec_says_and_keeps_a_head_that_is_there():
    mesh = make_mesh(2, 2, 2, jax.devices()[:8])
    half = dataclasses.replace(CONFIG, dtype="bfloat16")
    tree = params.init(jax.random.key(0), PLAIN, mesh)
    added = value_head.add(tree, half, params.shardings(half, mesh))
    assert "value_head" not in tree, "the tree that was given is left alone"
    assert jax.tree.structure(added) == jax.tree.structure(params.spec(CONFIG))
    head = added["value_head"]
    assert {leaf.dtype for leaf in jax.tree.leaves(head)} == {jnp.dtype("float32")}  # master weights
    assert jax.tree.map(lambda leaf: leaf.sharding, head) == params.shardings(half, mesh)["value_head"]
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(head))
    trained = {**tree, "value_head": jax.tree.map(lambda leaf: leaf + 3, head)}
    assert value_head.add(trained, half, params.shardings(half, mesh)) is trained


@pytest.mark.slow
def test_scores_do_not_see_it():
    tree = params.init(jax.random.key(1), CONFIG)
    tree["value_head"] = jax.tree.map(lambda leaf: leaf + 7, tree["value_head"])
    tokens = jnp.array([[3, 1, 4, 1, 5, 9]])
    row = tokens, jnp.arange(6)[None], jnp.ones((1, 6), int), jnp.ones((1, 6), bool)
    with_it = scoring.score(tree, *row, config=CONFIG, block=8)
    del tree["value_head"]
    for one, other in zip(with_it, scoring.score(tree, *row, config=PLAIN, block=8), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.abs(one).max() > 0.1


def test_an_exported_model_is_the_policy_alone(tmp_path: Path):
    tree = params.init(jax.random.key(2), CONFIG)
    pretrained.export(tree, CONFIG, None, tmp_path / "out")
    loaded, config = pretrained.load(tmp_path / "out")
    assert config == PLAIN
    jax.tree.map(np.testing.assert_array_equal, loaded, {k: v for k, v in tree.items() if k != "value_head"})


def test_weight_decay_spares_its_bias():
    decayed = optimizer.decayed(params.spec(CONFIG))["value_head"]
    assert decayed == {"weight": True, "bias": False}
