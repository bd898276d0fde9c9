"""What each parameter is called outside, and how its array lies there.

Hugging Face's names are the lingua franca: a GGUF file is read under them too. One row of the table is one
leaf of our tree; rows whose outside name holds "{layer}" are stacked on a leading layer axis. Torch stores
matrices [out, in] with the heads flattened; ours are [in, out] with the heads apart.
"""

import dataclasses
import math
import re

import numpy as np

from model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Name:
    """A leaf of the parameter tree: `path` in it, `outside` name, and the number of leading axes of one
    layer's array that are summed over when it is applied (`inputs`; 0 for vectors and the embedding table,
    which are not turned)."""

    path: tuple[str, str]
    outside: str
    inputs: int = 0

    @property
    def stacked(self) -> bool:
        return "{layer}" in self.outside

    def key(self, layer: int) -> str:
        return self.outside.format(layer=layer)

    def outside_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape outside of an array that has `shape` in our tree (one layer's)."""
        if self.inputs:
            return math.prod(shape[self.inputs :]), math.prod(shape[: self.inputs])
        return shape if self.path[0] == "embed" else (math.prod(shape),)

    def to_ours(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """One layer's array from outside, as our tree holds it; ValueError where the sizes differ."""
        if array.shape != self.outside_shape(shape):
            raise ValueError(f"expected shape {self.outside_shape(shape)}, got {array.shape}")
        return (array.T if self.inputs else array).reshape(shape)

    def to_outside(self, array: np.ndarray) -> np.ndarray:
        """One layer's array of our tree, as it lies outside."""
        shape = self.outside_shape(array.shape)
        return np.ascontiguousarray(array.reshape(shape[::-1]).T if self.inputs else array.reshape(shape))


_ATTENTION = "model.layers.{layer}.self_attn."
_MLP = "model.layers.{layer}.mlp."

_COMMON = (
    Name(("embed", "weight"), "model.embed_tokens.weight"),
    Name(("layers", "attn_norm"), "model.layers.{layer}.input_layernorm.weight"),
    Name(("layers", "wq"), _ATTENTION + "q_proj.weight", inputs=1),
    Name(("layers", "wk"), _ATTENTION + "k_proj.weight", inputs=1),
    Name(("layers", "wv"), _ATTENTION + "v_proj.weight", inputs=1),
    Name(("layers", "wo"), _ATTENTION + "o_proj.weight", inputs=2),
    Name(("layers", "mlp_norm"), "model.layers.{layer}.post_attention_layernorm.weight"),
    Name(("layers", "w_gate"), _MLP + "gate_proj.weight", inputs=1),
    Name(("layers", "w_up"), _MLP + "up_proj.weight", inputs=1),
    Name(("layers", "w_down"), _MLP + "down_proj.weight", inputs=1),
    Name(("final_norm", "weight"), "model.norm.weight"),
)
_BIASES = (
    Name(("layers", "bq"), _ATTENTION + "q_proj.bias"),
    Name(("layers", "bk"), _ATTENTION + "k_proj.bias"),
    Name(("layers", "bv"), _ATTENTION + "v_proj.bias"),
)
_NORMS = (
    Name(("layers", "q_norm"), _ATTENTION + "q_norm.weight"),
    Name(("layers", "k_norm"), _ATTENTION + "k_norm.weight"),
)
HEAD = Name(("head", "weight"), "lm_head.weight", inputs=1)

# Tensors that carry nothing of their own and may lie in a file beside the parameters.
_IGNORED = re.compile(r".*rotary_emb\.inv_freq")


def table(config: ModelConfig) -> tuple[Name, ...]:
    """The names of every parameter that a model of this config has."""
    return (
        *_COMMON,
        *(_BIASES if config.qkv_bias else ()),
        *(_NORMS if config.qk_norm else ()),
        *(() if config.tied_head else (HEAD,)),
    )


def check(present: set[str], config: ModelConfig) -> None:
    """ValueError that names the tensors of the model missing from `present`, and those of `present` it lacks.

    A stored head of a model with a tied head is passed over: it is the embedding table once more.
    """
    wanted = {name.key(layer) for name in table(config) for layer in range(config.layers)}
    passed = {name for name in present if _IGNORED.fullmatch(name)}
    if config.tied_head:
        passed.add(HEAD.outside)
    missing, unexpected = sorted(wanted - present), sorted(present - wanted - passed)
    if missing or unexpected:
        raise ValueError(
            f"the weights do not fit the config ({config.family}, {config.layers=}, {config.tied_head=}): "
            f"missing {_short(missing)}; unexpected {_short(unexpected)}"
        )


def _short(names: list[str], shown: int = 6) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more if names else "nothing"


# GGUF name -> Hugging Face name, both without ".weight" / ".bias".
_GGUF = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def from_gguf(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; names of no known parameter come back as they are."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if not match or match[2] not in _GGUF:
        return name
    layer = f"model.layers.{match[1]}." if match[1] else ""
    return f"{layer}{_GGUF[match[2]]}.{match[3]}"
