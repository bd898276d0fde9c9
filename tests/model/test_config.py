import dataclasses

import pytest

from model.config import PRESETS, ModelConfig, RopeScaling

TINY = ModelConfig(vocab_size=11, width=8, layers=1, heads=4, kv_heads=2, head_size=2, hidden=16)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_hugging_face_round_trip(name):
    config = PRESETS[name]
    assert ModelConfig.from_hf(config.to_hf()) == config


def test_reads_both_spellings_of_rope():
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = {**TINY.to_hf(), "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}}
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_type": "llama3", "rope_theta": 5e5, **scaling}
    want = dataclasses.replace(TINY, rope_theta=5e5, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 64))
    assert ModelConfig.from_hf(old) == ModelConfig.from_hf(new) == want


def test_head_size_defaults_to_width_over_heads():
    hf = TINY.to_hf()
    del hf["head_dim"], hf["num_key_value_heads"]
    config = ModelConfig.from_hf(hf)
    assert (config.head_size, config.kv_heads) == (2, 4)


def test_family_follows_the_variant():
    assert TINY.family == "llama"
    assert dataclasses.replace(TINY, qkv_bias=True).family == "qwen2"
    assert dataclasses.replace(TINY, qk_norm=True).family == "qwen3"
    with pytest.raises(ValueError, match="no Hugging Face family"):
        _ = dataclasses.replace(TINY, qk_norm=True, qkv_bias=True).family


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type='gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_bias": True}, "attention_bias=true"),
        ({"use_sliding_window": True}, "use_sliding_window=true"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
    ],
)
def test_refuses_what_it_does_not_compute(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf({**TINY.to_hf(), **change})


@pytest.mark.parametrize("change", [{"kv_heads": 3}, {"head_size": 3}, {"dtype": "float16"}])
def test_refuses_sizes_that_do_not_fit(change):
    with pytest.raises(ValueError, match=r"must|one of"):
        dataclasses.replace(TINY, **change)
