"""How much there is to compute: floating-point operations and bytes of each work, and the least time for them.

Counted is the least that the mathematics asks for, not what an implementation does: a prompt once a group, logits only
where a token is sampled or scored, no padding, nothing computed twice. A multiply and an add are two operations;
norms, softmax and rotations are left out (a few percent). Bytes are weights, keys and values, gradients and optimizer
state in float32; activations are left out, as a fused program need not write them.
"""

from __future__ import annotations

import dataclasses

from model.config import ModelConfig
from tools.benchmarks.shapes import Sizes

_BYTES = 4  # of a float32
# An update reads the weights forward and backward, writes and reads gradients, and AdamW reads and writes weights and
# two moments.
_UPDATE_PASSES = 2 + 2 + 6


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a work whose operations and memory traffic can overlap."""

    flops: float
    bytes: float

    def least_s(self, *, flops_per_s: float, bytes_per_s: float) -> float:
        """The roofline's time, whichever bounds it (Williams et al. 2009)."""
        return max(self.flops / flops_per_s, self.bytes / bytes_per_s)


def layer_weights(config: ModelConfig) -> int:
    """Entries of one layer's matrices."""
    heads = 2 * config.heads + 2 * config.kv_heads
    return config.width * (heads * config.head_size + 3 * config.hidden)


def weights(config: ModelConfig) -> int:
    """Entries of all matrices, the embedding table included (once where the head is tied to it)."""
    tables = 1 if config.tied_head else 2
    return config.layers * layer_weights(config) + tables * config.vocab_size * config.width


def forward_flops(config: ModelConfig, *, tokens: int, attended: int, logits: int) -> int:
    """Operations of a forward pass over `tokens`, which attend to `attended` positions in all, of which `logits`
    are multiplied with the head."""
    matrices = 2 * tokens * config.layers * layer_weights(config)
    attention = 4 * attended * config.layers * config.heads * config.head_size
    return matrices + attention + 2 * logits * config.width * config.vocab_size


def causal(length: int) -> int:
    """Positions that the tokens of one row attend to, themselves included."""
    return length * (length + 1) // 2


def cache_bytes(config: ModelConfig, positions: int) -> int:
    """Keys and values of `positions` in all layers."""
    return 2 * _BYTES * positions * config.layers * config.kv_heads * config.head_size


def phases(work: str, config: ModelConfig, sizes: Sizes) -> list[Phase]:
    """The phases of a work, one after the other; each decoded position is one, since it needs the one before."""
    if work == "generate":
        return _generate(config, sizes)
    if work == "step":
        length = sizes.prompt + sizes.new
        return [*_generate(config, sizes), _score(config, sizes, length), _update(config, sizes, length)]
    return [{"score": _score, "update": _update}[work](config, sizes, sizes.length)]


def least_s(work: str, config: ModelConfig, sizes: Sizes, *, flops_per_s: float, bytes_per_s: float) -> float:
    """Seconds below which this machine cannot do the work, by its measured ceilings."""
    return sum(
        phase.least_s(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
        for phase in phases(work, config, sizes)
    )


def _generate(config: ModelConfig, sizes: Sizes) -> list[Phase]:
    held = _BYTES * weights(config)
    fed = sizes.groups * sizes.prompt
    prefill = forward_flops(
        config, tokens=fed, attended=sizes.groups * causal(sizes.prompt), logits=sizes.groups
    )
    out = [Phase(prefill, held + cache_bytes(config, fed))]
    for made in range(1, sizes.new):
        seen = sizes.batch * (sizes.prompt + made)
        flops = forward_flops(config, tokens=sizes.batch, attended=seen, logits=sizes.batch)
        out.append(Phase(flops, held + cache_bytes(config, seen)))
    return out


def _score(config: ModelConfig, sizes: Sizes, length: int) -> Phase:
    return Phase(_rows_flops(config, sizes, length), _BYTES * weights(config))


def _update(config: ModelConfig, sizes: Sizes, length: int) -> Phase:
    # The backward pass multiplies each matrix twice: for its inputs and for its weights.
    return Phase(3 * _rows_flops(config, sizes, length), _UPDATE_PASSES * _BYTES * weights(config))


def _rows_flops(config: ModelConfig, sizes: Sizes, length: int) -> int:
    return forward_flops(
        config,
        tokens=sizes.batch * length,
        attended=sizes.batch * causal(length),
        logits=sizes.batch * (length - sizes.prompt),
    )
