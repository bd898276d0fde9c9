"""A rollout whose observations and sampled ids are known beforehand, and a byte tokenizer with a chat template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from envs.protocol import Event, Observation, StepResult
from model.tokenizer import Tokenizer
from rl.rollout import Rollout, RolloutSettings
from rl.types import Draw, Trajectory

# The part of Qwen3's template that rewrites: thoughts of earlier assistant turns are dropped.
QWEN3 = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{{ message['content'].split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
END = 257  # <|im_end|>


def qwen3_tokenizer() -> Tokenizer:
    """Ids below 256 are bytes. No pad token is named, so the end token pads."""
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")]
    )
    return Tokenizer(backend, {"eos_token": "<|im_end|>"}, template=QWEN3)


class Sampler:
    """Writes the responses one after the other, and remembers what it has read and written since a restart."""

    def __init__(self, responses: list[list[int]]):
        self.responses, self.left = list(responses), []
        self.seen: list[list[int]] = []  # a row each restart

    def extend(self, params: Any, rows: Any, prompts: Any, seeds: Any, *, restart: Any) -> Any:
        if restart[0]:
            self.seen.append([])
        self.seen[-1] += prompts[0]
        self.left = self.responses.pop(0)
        return SimpleNamespace(tokens=self._write(1), logp=np.array([-0.5]), full=np.zeros(1, bool))

    def decode(self, params: Any, active: Any, limits: Any) -> Any:
        tokens = self._write(int(limits[0]) - 1)
        return SimpleNamespace(
            tokens=tokens[None],
            logp=np.full((1, len(tokens)), -0.25),
            counts=np.array([len(tokens)]),
            full=np.zeros(1, bool),
        )

    def _write(self, count: int) -> np.ndarray:
        tokens, self.left = self.left[:count], self.left[count:]
        self.seen[-1] += tokens
        return np.array(tokens)


class Pool:
    """One environment that shows these observations; its episode ends after the last, with a reward of 1."""

    def __init__(self, observations: list[str]):
        self.left, self.events = list(observations), []

    def reset(self, slot: int, task: str, seed: int) -> None:
        self.events.append(Event(slot=slot, kind="reset", observation=self._next()))

    def step(self, slot: int, response: str) -> None:
        done = not self.left
        result = StepResult(
            observation=None if done else self._next(),
            reward=float(done),
            penalty=0.0,
            done=done,
            success=done,
            action=response,
            valid=True,
            stop="success" if done else "",
        )
        self.events.append(Event(slot=slot, kind="step", result=result, observation=result.observation))

    def _next(self) -> Observation:
        text = self.left.pop(0)
        return Observation(system="", prompts=(text,), blind="", anchor=text, info={})

    def poll(self, timeout_s: float) -> list[Event]:
        events, self.events = self.events, []
        return events


def play(
    tokenizer: Any,
    observations: list[str],
    responses: list[list[int]],
    *,
    context: str,
    response_limit: int = 64,
) -> tuple[Trajectory, list[list[int]]]:
    """The episode, and the rows of ids that the sampler saw."""
    sampler = Sampler(responses)
    settings = RolloutSettings(context, 1, 512, response_limit, gather_s=0.1, deadline_s=1.0)
    rollout = Rollout(Pool(observations), sampler, tokenizer, settings)
    (trajectory,) = rollout.collect(None, [Draw("task", 0, 0, 0)])
    return trajectory, sampler.seen
