"""ModelConfig: every number that tells one decoder from another, and its Hugging Face counterpart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

FAMILIES = ("qwen2", "qwen3", "llama")
DTYPES = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency scaling: wavelengths beyond `original_positions / low_freq_factor` are stretched by
    `factor`, those under `original_positions / high_freq_factor` are kept, the band between is interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape and variant of a pre-norm, SwiGLU, rotary decoder (Qwen2.5, Qwen3, Llama 3.x, SmolLM2).

    `dtype` is that of activations and matrix products; norms, softmax and logits are float32 whatever it is.
    Hashable, so it may be a static argument of a jitted function. Raises ValueError on sizes that do not fit.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = True
    max_positions: int = 32_768
    dtype: str = "float32"
    value_head: bool = False  # params carry a critic; no Hugging Face config knows it

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads=} must divide by {self.kv_heads=}")
        if self.head_size % 2:
            raise ValueError(f"{self.head_size=} must be even: rotary positions turn pairs")
        if self.dtype not in DTYPES:
            raise ValueError(f"{self.dtype=} is not one of {DTYPES}")

    @property
    def family(self) -> str:
        """Hugging Face `model_type` that computes this variant; ValueError where none does."""
        if self.qk_norm and self.qkv_bias:
            raise ValueError(
                "no Hugging Face family has both q/k norms and q/k/v biases without an output bias"
            )
        return "qwen3" if self.qk_norm else "qwen2" if self.qkv_bias else "llama"

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], *, dtype: str = "float32") -> ModelConfig:
        """Config of a `config.json` (transformers 4 and 5 spellings). ValueError names what is not supported."""
        family = hf.get("model_type")
        if family not in FAMILIES:
            raise ValueError(f"model_type={family!r} is not supported; known: {FAMILIES}")
        if hf.get("hidden_act", "silu") != "silu":
            raise ValueError(f"hidden_act={hf['hidden_act']!r} is not supported; only 'silu'")
        for flag in ("use_sliding_window", "mlp_bias", "attention_bias"):
            if hf.get(flag):
                raise ValueError(f"{flag}=true is not supported for model_type={family!r}")
        heads = int(hf["num_attention_heads"])
        # transformers 5 nests theta and scaling in rope_parameters; 4 spells them rope_theta and rope_scaling.
        rope = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
        theta = hf.get("rope_theta") or rope.get("rope_theta") or 10_000.0
        return cls(
            vocab_size=int(hf["vocab_size"]),
            width=int(hf["hidden_size"]),
            layers=int(hf["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(hf.get("num_key_value_heads") or heads),
            head_size=int(hf.get("head_dim") or hf["hidden_size"] // heads),
            hidden=int(hf["intermediate_size"]),
            norm_eps=float(hf.get("rms_norm_eps", 1e-6)),
            rope_theta=float(theta),
            rope_scaling=_scaling_from_hf(rope),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            tied_head=bool(hf.get("tie_word_embeddings", False)),
            max_positions=int(hf.get("max_position_embeddings", 32_768)),
            dtype=dtype,
        )

    def to_hf(self) -> dict[str, Any]:
        """`config.json` contents (spelling of transformers 4, which 5 reads too); inverse of `from_hf`."""
        architecture = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
        hf: dict[str, Any] = {
            "architectures": [architecture[self.family]],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.hidden,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied_head,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "torch_dtype": self.dtype,
        }
        if self.rope_scaling is not None:
            hf["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": self.rope_scaling.factor,
                "low_freq_factor": self.rope_scaling.low_freq_factor,
                "high_freq_factor": self.rope_scaling.high_freq_factor,
                "original_max_position_embeddings": self.rope_scaling.original_positions,
            }
        return hf


def _scaling_from_hf(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type={kind!r} is not supported; known: 'default', 'llama3'")
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_positions=int(rope["original_max_position_embeddings"]),
    )


def _qwen25(width: int, layers: int, heads: int, kv_heads: int, hidden: int, *, vocab_size: int = 151_936,
            tied_head: bool = True) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        vocab_size=vocab_size, width=width, layers=layers, heads=heads, kv_heads=kv_heads,
        head_size=width // heads, hidden=hidden, rope_theta=1e6, qkv_bias=True, tied_head=tied_head,
    )  # fmt: skip


def _qwen3(width: int, layers: int, heads: int, hidden: int, *, tied_head: bool = True) -> ModelConfig:
    return ModelConfig(
        vocab_size=151_936, width=width, layers=layers, heads=heads, kv_heads=8, head_size=128, hidden=hidden,
        rope_theta=1e6, qk_norm=True, tied_head=tied_head, max_positions=40_960,
    )  # fmt: skip


def _llama3(width: int, layers: int, heads: int, head_size: int, hidden: int, *, factor: float,
            tied_head: bool) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        vocab_size=128_256, width=width, layers=layers, heads=heads, kv_heads=8, head_size=head_size,
        hidden=hidden, norm_eps=1e-5, rope_theta=500_000.0, rope_scaling=RopeScaling(factor, 1.0, 4.0, 8192),
        tied_head=tied_head, max_positions=131_072,
    )  # fmt: skip


def _smollm2(width: int, layers: int, heads: int, kv_heads: int, hidden: int, *, theta: float) -> ModelConfig:
    return ModelConfig(
        vocab_size=49_152, width=width, layers=layers, heads=heads, kv_heads=kv_heads, head_size=64, hidden=hidden,
        norm_eps=1e-5, rope_theta=theta, max_positions=8192,
    )  # fmt: skip


PRESETS: dict[str, ModelConfig] = {
    # The embedded policy's shape; the vocabulary is replaced by the trained tokenizer's.
    "tiny": ModelConfig(
        vocab_size=1024,
        width=160,
        layers=4,
        heads=4,
        kv_heads=2,
        head_size=40,
        hidden=512,
        qk_norm=True,
        max_positions=2048,
    ),
    "smollm2-135m": _smollm2(576, 30, 9, 3, 1536, theta=100_000.0),
    "smollm2-360m": _smollm2(960, 32, 15, 5, 2560, theta=100_000.0),
    "smollm2-1.7b": _smollm2(2048, 24, 32, 32, 8192, theta=130_000.0),
    "qwen2.5-0.5b": _qwen25(896, 24, 14, 2, 4864),
    "qwen2.5-1.5b": _qwen25(1536, 28, 12, 2, 8960),
    "qwen2.5-3b": _qwen25(2048, 36, 16, 2, 11_008),
    "qwen2.5-7b": _qwen25(3584, 28, 28, 4, 18_944, vocab_size=152_064, tied_head=False),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728),
    "qwen3-8b": _qwen3(4096, 36, 32, 12_288, tied_head=False),
    "llama3.1-8b": _llama3(4096, 32, 32, 128, 14_336, factor=8.0, tied_head=False),
    "llama3.2-1b": _llama3(2048, 16, 32, 64, 8192, factor=32.0, tied_head=True),
    "llama3.2-3b": _llama3(3072, 28, 24, 128, 8192, factor=32.0, tied_head=True),
}
