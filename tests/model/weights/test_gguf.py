"""GGUF files made here with the gguf package: quantised weights, llama.cpp's order of q and k rows,
metadata."""

import dataclasses
from pathlib import Path

import gguf as format
import gguf.quants
import jax
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from model.config import ModelConfig, RopeScaling
from model.layers import rope_frequencies
from model.weights import gguf, names, pretrained
from tests.model.weights.test_pretrained import _random

LLAMA = ModelConfig(
    vocab_size=300, width=64, layers=2, heads=4, kv_heads=2, head_size=16, hidden=96, norm_eps=1e-5, rope_theta=5e5,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192), max_positions=1000,
)  # fmt: skip
QWEN2 = dataclasses.replace(LLAMA, rope_scaling=None, qkv_bias=True, tied_head=False, norm_eps=1e-6)
QWEN3 = dataclasses.replace(LLAMA, rope_scaling=None, qk_norm=True, head_size=32)
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _write(path: Path, config: ModelConfig, tree: dict, *, quantise: bool, pre: str = "smollm") -> None:
    architecture = config.family
    writer = format.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.hidden)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "12", "ab", "<tool>", "[PAD262]"]
    kinds = [3, 3, 3] + [1] * 256 + [1, 1, 4, 5]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["1 2", "a b"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    ours = {value: key for key, value in names._GGUF.items()}
    for name in names.table(config):
        for layer in range(config.layers if name.stacked else 1):
            leaf = tree[name.path[0]][name.path[1]]
            array = name.to_outside(leaf[layer] if name.stacked else leaf)
            if architecture == "llama" and name.path[1] in ("wq", "wk"):
                # As llama.cpp's converter does it.
                heads = config.heads if name.path[1] == "wq" else config.kv_heads
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            stem, kind = name.outside.replace("model.layers.{layer}.", "").rsplit(".", 1)
            outside = (f"blk.{layer}." if name.stacked else "") + f"{ours[stem]}.{kind}"
            if quantise and array.ndim == 2:
                data = gguf_quantised(array)
                writer.add_tensor(outside, data, raw_dtype=format.GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(outside, np.ascontiguousarray(array))
    if config.rope_scaling:
        plain = dataclasses.replace(config, rope_scaling=None)
        writer.add_tensor("rope_freqs.weight", rope_frequencies(plain) / rope_frequencies(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_quantised(array: np.ndarray) -> np.ndarray:
    return format.quants.quantize(array, format.GGMLQuantizationType.Q8_0)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_weights_and_config_come_back(config: ModelConfig, tmp_path: Path):
    tree = _random(config)
    _write(tmp_path / "model.gguf", config, tree, quantise=False)
    loaded, found = pretrained.load(tmp_path / "model.gguf")
    assert found == config == pretrained.load_config(tmp_path / "model.gguf")
    jax.tree.map(np.testing.assert_array_equal, loaded, tree)


def test_quantised_weights_are_dequantised(tmp_path: Path):
    tree = _random(LLAMA)
    _write(tmp_path / "model.gguf", LLAMA, tree, quantise=True)
    loaded, _ = pretrained.load(tmp_path / "model.gguf")
    # 8 bits over the largest of 32 normal numbers (about 3.5): steps of 0.03.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=0.025), loaded, tree)
    assert np.abs(loaded["layers"]["wq"] - tree["layers"]["wq"]).max() > 1e-3


def test_tokenizer_of_the_metadata(tmp_path: Path):
    _write(tmp_path / "model.gguf", LLAMA, _random(LLAMA), quantise=False)
    tokenizer = pretrained.load_tokenizer(tmp_path / "model.gguf")
    assert tokenizer.stop_ids == (2,)
    assert tokenizer.pad_id == 2
    assert tokenizer.vocab_size == 262  # the unused last entry is none
    assert tokenizer.decode(tokenizer.prompt("", "ab"), show_special=True) == (
        "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.encode("<tool>") == [261]
    assert 260 in tokenizer.encode("ab")
    assert 2 not in tokenizer.encode("<|im_end|>")
    pretrained.export(_random(LLAMA), LLAMA, tokenizer, tmp_path / "out")
    assert pretrained.load_tokenizer(tmp_path / "out").encode("x ab 12") == tokenizer.encode("x ab 12")


@pytest.mark.parametrize(("pre", "merged"), [("smollm", False), ("qwen2", False), ("llama-bpe", True)])
def test_numbers_are_cut_as_the_model_expects(pre: str, merged: bool, tmp_path: Path):
    _write(tmp_path / "model.gguf", LLAMA, _random(LLAMA), quantise=False, pre=pre)
    ids = pretrained.load_tokenizer(tmp_path / "model.gguf").encode("12")
    assert (ids == [259]) == merged


def test_what_is_not_read_is_said(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="no GGUF file"):
        gguf.Reader(tmp_path / "absent.gguf")
    _write(tmp_path / "model.gguf", LLAMA, _random(LLAMA), quantise=False, pre="other")
    with pytest.raises(ValueError, match="pre-tokenizer 'other' is not read"):
        pretrained.load_tokenizer(tmp_path / "model.gguf")
    writer = format.GGUFWriter(str(tmp_path / "mamba.gguf"), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture 'mamba' is not read"):
        gguf.Reader(tmp_path / "mamba.gguf")
