"""What is computed: models by name, the sizes of a work, and the random inputs that every contestant gets.

Light on purpose (no jax): the process that times others must be small, since a child's peak memory may count what its
parent held when it was forked.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from model.config import PRESETS, ModelConfig

MODELS = {
    "smollm2-135m": PRESETS["smollm2-135m"],
    "small": ModelConfig(
        vocab_size=4096, width=256, layers=4, heads=4, kv_heads=2, head_size=64, hidden=1024, max_positions=16_384
    ),
}  # fmt: skip

WORKS = ("envs", "generate", "score", "update", "step")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of one work, in sequences and tokens; raises ValueError where they do not fit each other.

    generate: `batch` prompts of `prompt` tokens, the same one for `group` of them, and `new` sampled tokens each.
    score, update: `batch` rows of `length` tokens, of which the first `prompt` are context.
    step: generate, then score and update of rows of prompt + new tokens (`length` is not read).
    envs: `batch` episodes in flight, `new` steps each.
    """

    batch: int = 8
    group: int = 8
    prompt: int = 256
    new: int = 64
    length: int = 512

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.batch % self.group:
            raise ValueError(f"batch={self.batch} must divide by group={self.group}: groups share a prompt")

    @property
    def groups(self) -> int:
        return self.batch // self.group

    def tokens(self, work: str) -> int:
        """What tokens/s counts: sampled tokens (generate), tokens of rows (score, update, step), steps (envs)."""
        return {
            "envs": self.batch * self.new,
            "generate": self.batch * self.new,
            "score": self.batch * self.length,
            "update": self.batch * self.length,
            "step": self.batch * (self.prompt + self.new),
        }[work]


@dataclasses.dataclass(frozen=True)
class Knobs:
    """How our side computes, where it has a choice; values as in `configs/common.py`."""

    chunk: int = 32  # rollout.decode_chunk
    block: int = 2048  # learner.score_block
    remat: str = "none"  # learner.remat
    microbatch: int = 0  # learner.microbatch_tokens; 0 = all rows at once


def model(name: str, *, vocabulary: int = 0) -> ModelConfig:
    """The preset, with another number of tokens if `vocabulary` is not 0. ValueError lists the known names."""
    if name not in MODELS:
        raise ValueError(f"unknown model={name!r}; known: {', '.join(MODELS)}")
    if vocabulary and vocabulary < 16:
        raise ValueError(f"{vocabulary=} must be at least 16")
    config = MODELS[name]
    return dataclasses.replace(config, vocab_size=vocabulary) if vocabulary else config


def spec(
    work: str,
    config: ModelConfig,
    sizes: Sizes,
    *,
    knobs: Knobs | None = None,
    weights: str = "",
    seed: int = 0,
) -> dict[str, Any]:
    """The request that opens a work, as JSON: settings, and ids and rewards drawn from `seed`.

    prompts: one a sequence, equal within a group. rows: prompts and random responses, for score and update. rewards:
    one a sequence, of both kinds in every group (0 and 1 by turns). weights: a Hugging Face directory, "" = random
    ones drawn in the process. ValueError where rows have no response, nothing is decoded, or sequences are longer
    than the model's positions.
    """
    rows = work in ("score", "update")
    if rows and sizes.length <= sizes.prompt:
        raise ValueError(f"length={sizes.length} must exceed prompt={sizes.prompt}, which it begins with")
    if work in ("generate", "step") and sizes.new < 2:
        raise ValueError(f"new={sizes.new} must be at least 2: one comes from the prompt, others follow")
    longest = sizes.length if rows else sizes.prompt + sizes.new
    if work != "envs" and longest > config.max_positions:
        raise ValueError(f"sequences of {longest} tokens exceed {config.max_positions=}")
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(config.vocab_size) for _ in range(count)]

    firsts = [ids(sizes.prompt) for _ in range(sizes.groups)]
    prompts = [firsts[row // sizes.group] for row in range(sizes.batch)]
    return {
        "work": work,
        "model": dataclasses.asdict(config),
        "sizes": dataclasses.asdict(sizes),
        "knobs": dataclasses.asdict(knobs or Knobs()),
        "weights": weights,
        "seed": seed,
        "prompts": prompts,
        "rows": [prompt + ids(sizes.length - sizes.prompt) for prompt in prompts] if rows else [],
        "rewards": [float(row % sizes.group % 2) for row in range(sizes.batch)],
    }
