"""Loading and exporting whole models, without transformers (with it: tests/parity)."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import params
from model.config import ModelConfig
from model.tokenizer import Tokenizer
from model.weights import pretrained, safetensors
from sharding.mesh import make_mesh

CONFIG = ModelConfig(
    vocab_size=16, width=8, layers=2, heads=2, kv_heads=1, head_size=4, hidden=12, tied_head=True
)
VARIANTS = {
    "llama-tied": CONFIG,
    "llama": dataclasses.replace(CONFIG, tied_head=False),
    "qwen2": dataclasses.replace(CONFIG, qkv_bias=True, tied_head=False),
    "qwen3-tied": dataclasses.replace(CONFIG, qk_norm=True),
}


def _random(config: ModelConfig) -> params.Params:
    leaves, structure = jax.tree.flatten(params.shapes(config))
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(structure, [rng.normal(size=leaf.shape).astype(leaf.dtype) for leaf in leaves])


@pytest.mark.parametrize("variant", VARIANTS)
def test_load_export_load_gives_the_same_keys_and_values(variant: str, tmp_path: Path):
    config, tree = VARIANTS[variant], _random(VARIANTS[variant])
    pretrained.export(tree, config, None, tmp_path / "one")
    loaded, found = pretrained.load(tmp_path / "one")
    assert found == config
    assert jax.tree.structure(loaded) == jax.tree.structure(params.spec(config))
    jax.tree.map(np.testing.assert_array_equal, loaded, tree)
    pretrained.export(loaded, found, None, tmp_path / "two")
    with safetensors.Reader(tmp_path / "one") as one, safetensors.Reader(tmp_path / "two") as two:
        assert one.names() == two.names()
        assert ("lm_head.weight" in one.names()) == (not config.tied_head)


def test_dtype_is_the_configs(tmp_path: Path):
    pretrained.export(_random(CONFIG), CONFIG, None, tmp_path / "half", dtype="bfloat16")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    with safetensors.Reader(tmp_path / "half") as reader:
        assert reader.read("model.norm.weight").dtype == jnp.bfloat16
    tree, config = pretrained.load(tmp_path / "half", dtype="bfloat16")
    assert config.dtype == "bfloat16"
    assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype("bfloat16")}
    wide, _ = pretrained.load(tmp_path / "half", config=CONFIG)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide)} == {jnp.dtype("float32")}
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(jnp.float32)), wide, tree)


def test_leaves_go_to_their_shards(tmp_path: Path):
    config = dataclasses.replace(CONFIG, vocab_size=16, heads=4, kv_heads=2)
    tree = _random(config)
    pretrained.export(tree, config, None, tmp_path / "out")
    mesh = make_mesh(1, 4, 2, jax.devices()[:8])
    loaded, _ = pretrained.load(tmp_path / "out", mesh=mesh)
    assert jax.tree.map(lambda leaf: leaf.sharding, loaded) == params.shardings(config, mesh)
    jax.tree.map(np.testing.assert_array_equal, loaded, tree)
    pretrained.export(loaded, config, None, tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, pretrained.load(tmp_path / "again")[0], tree)


def test_weights_of_another_model_are_refused_by_name(tmp_path: Path):
    pretrained.export(_random(CONFIG), CONFIG, None, tmp_path / "out")
    deeper = dataclasses.replace(CONFIG, layers=3)
    with pytest.raises(ValueError, match=r"missing model\.layers\.2\.input_layernorm\.weight, .* and 3 more"):
        pretrained.load(tmp_path / "out", config=deeper)
    wider = dataclasses.replace(CONFIG, vocab_size=17)
    with pytest.raises(
        ValueError, match=r"model.embed_tokens.weight: expected shape \(17, 8\), got \(16, 8\)"
    ):
        pretrained.load(tmp_path / "out", config=wider)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        pretrained.load_config(tmp_path)


def test_tokenizer_files_travel(tmp_path: Path):
    tokenizer = Tokenizer.train(["go to cabinet 8"] * 2, vocab_size=300)
    tree = _random(CONFIG)
    pretrained.export(tree, CONFIG, tokenizer, tmp_path / "saved")
    pretrained.export(tree, CONFIG, tmp_path / "saved", tmp_path / "copied")
    for name in ("saved", "copied"):
        loaded = pretrained.load_tokenizer(tmp_path / name)
        assert loaded.prompt("", "go") == tokenizer.prompt("", "go")
        assert loaded.stop_ids == tokenizer.stop_ids


def test_nothing_is_overwritten_and_nothing_half_written_is_left(tmp_path: Path):
    out = tmp_path / "out"
    pretrained.export(_random(CONFIG), CONFIG, None, out)
    with pytest.raises(FileExistsError, match="is not empty"):
        pretrained.export(_random(CONFIG), CONFIG, None, out)
    with pytest.raises(KeyError):
        pretrained.export({"layers": {}, "embed": {}}, CONFIG, None, tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
