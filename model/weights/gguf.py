"""GGUF files (llama.cpp): weights dequantised to float32, config and tokenizer from the metadata.

Read under Hugging Face names and conventions, so that the rest of the program sees one kind of checkpoint.
Architectures: llama (SmolLM2, Llama 3.x), qwen2, qwen3, with byte-level BPE vocabularies.
"""

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from model.config import ModelConfig, RopeScaling
from model.layers import rope_frequencies
from model.tokenizer import Tokenizer
from model.weights import names

_ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Llama 3's scaling parameters besides the factor: the same in every release. A file holds only their effect.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_positions": 8192}

# How Qwen and Llama 3 cut text before merging; {digits} is what a piece of a number may be.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|{digits}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # gguf.TokenType


class Reader:
    """The tensors of a GGUF file under Hugging Face names, and the config and tokenizer in its metadata.

    The file is mapped; `read` dequantises one tensor. Use as a context manager. ValueError for an
    architecture that is not known.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)
        if not self._path.is_file():
            raise FileNotFoundError(f"no GGUF file at {self._path}")
        self._file = gguf.GGUFReader(str(self._path))
        self.architecture: str = self._value("general.architecture")
        if self.architecture not in _ARCHITECTURES:
            raise ValueError(
                f"{self._path}: architecture {self.architecture!r} is not read; known: {_ARCHITECTURES}"
            )
        self._tensors = {names.from_gguf(tensor.name): tensor for tensor in self._file.tensors}
        self._rope_factors = self._tensors.pop("rope_freqs.weight", None)
        self._heads = int(self._field("attention.head_count"))
        self._kv_heads = int(self._field("attention.head_count_kv", self._heads))

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._tensors)

    def read(self, name: str) -> np.ndarray:
        """The tensor in float32, its shape as in a Hugging Face file."""
        tensor = self._tensors[name]
        array = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if self.architecture != "llama":
            return array
        if ".q_proj." in name:
            return _uninterleaved(array, heads=self._heads)
        if ".k_proj." in name:
            return _uninterleaved(array, heads=self._kv_heads)
        return array

    def config(self, *, dtype: str = "float32") -> ModelConfig:
        """The model's config. ValueError for a rope scaling other than Llama 3's."""
        embed = self._tensors["model.embed_tokens.weight"]
        width = int(self._field("embedding_length"))
        head_size = self._field(
            "attention.key_length", self._field("rope.dimension_count", width // self._heads)
        )
        config = ModelConfig(
            vocab_size=int(embed.shape[1]),  # GGUF writes shapes last axis first
            width=width,
            layers=int(self._field("block_count")),
            heads=self._heads,
            kv_heads=self._kv_heads,
            head_size=int(head_size),
            hidden=int(self._field("feed_forward_length")),
            norm_eps=_short(self._field("attention.layer_norm_rms_epsilon")),
            rope_theta=_short(self._field("rope.freq_base", 10_000.0)),
            qkv_bias=self.architecture == "qwen2",
            qk_norm=self.architecture == "qwen3",
            tied_head="lm_head.weight" not in self._tensors,
            max_positions=int(self._field("context_length")),
            dtype=dtype,
        )
        scaling = self._field("rope.scaling.type", "none")
        if scaling != "none":
            raise ValueError(f"{self._path}: rope scaling {scaling!r} is not supported; only Llama 3's is")
        return config if self._rope_factors is None else _scaled(config, np.asarray(self._rope_factors.data))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer with its chat template. ValueError for a kind of vocabulary that is not known."""
        kind, cut = self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.pre", "default")
        if kind != "gpt2" or cut not in _PRE_TOKENIZERS:
            raise ValueError(
                f"{self._path}: tokenizer {kind!r} with pre-tokenizer {cut!r} is not read; "
                f"known: 'gpt2' with {sorted(_PRE_TOKENIZERS)}; take the original model's tokenizer files"
            )
        tokens, kinds = self._value("tokenizer.ggml.tokens"), self._value("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self._value("tokenizer.ggml.merges")]
        vocab = {token: id_ for id_, (token, kind) in enumerate(zip(tokens, kinds)) if kind != _UNUSED}
        backend = tokenizers.Tokenizer(
            models.BPE(vocab=vocab, merges=merges, ignore_merges=cut == "llama-bpe")
        )
        if cut == "qwen2":
            backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = _PRE_TOKENIZERS[cut]()
        backend.decoder = decoders.ByteLevel()
        added = [
            tokenizers.AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
        backend.add_tokens(added)
        settings: dict[str, Any] = {"clean_up_tokenization_spaces": False}
        for name, key in {"bos": "bos", "eos": "eos", "pad": "padding"}.items():
            id_ = self._value(f"tokenizer.ggml.{key}_token_id", None)
            if id_ is not None:
                settings[f"{name}_token"] = tokens[id_]
        return Tokenizer(backend, settings, template=self._value("tokenizer.chat_template", None))

    def _field(self, key: str, *default: Any) -> Any:
        return self._value(f"{self.architecture}.{key}", *default)

    def _value(self, key: str, *default: Any) -> Any:
        field = self._file.get_field(key)
        if field is not None:
            return field.contents()
        if default:
            return default[0]
        raise ValueError(f"{self._path}: the metadata has no {key!r}")

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        self._tensors.clear()


def _uninterleaved(array: np.ndarray, *, heads: int) -> np.ndarray:
    """Rows of each head from llama.cpp's order (rope pairs side by side) to Hugging Face's (halves apart)."""
    rest = array.shape[1:]
    half = array.shape[0] // heads // 2
    return array.reshape(heads, half, 2, *rest).swapaxes(1, 2).reshape(array.shape)


def _scaled(config: ModelConfig, factors: np.ndarray) -> ModelConfig:
    """`config` with the Llama 3 scaling that divides rope frequencies by `factors` [E/2]."""
    found = dataclasses.replace(config, rope_scaling=RopeScaling(factor=float(factors.max()), **_LLAMA3))
    expected = rope_frequencies(config) / rope_frequencies(found)
    if not np.allclose(expected, factors, rtol=1e-3):
        raise ValueError(f"the file's rope factors (largest {factors.max()}) are not Llama 3's scaling")
    return found


def _short(value: float) -> float:
    """A float32 of the metadata as the decimal number that was meant: 9.9999997e-06 is 1e-05."""
    return float(f"{value:.6g}")


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS.replace("{digits}", digits)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _smollm() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


# tokenizer.ggml.pre -> pre-tokenizer
_PRE_TOKENIZERS = {
    "smollm": _smollm,
    "qwen2": lambda: _split(r"\p{N}"),
    "llama-bpe": lambda: _split(r"\p{N}{1,3}"),
}
