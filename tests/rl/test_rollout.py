"""The rollout against a scripted sampler and pool: every slot at its own pace, ids untouched, failures excluded."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from envs.protocol import Event, Observation, StepResult
from rl.rollout import Rollout, RolloutSettings
from rl.types import Draw

STOP = 7


class Words:
    """A tokenizer of single letters: ids are code points; a prompt is [1] text, a continuation [2] text."""

    stop_ids = (STOP,)

    def prompt(self, system: str, user: str) -> list[int]:
        return [1, *map(ord, system + user)]

    def continuation(self, user: str, *, closed: bool) -> list[int]:
        return [2 if closed else 3, *map(ord, user)]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


@dataclasses.dataclass
class First:
    tokens: np.ndarray
    logp: np.ndarray
    full: np.ndarray


@dataclasses.dataclass
class Chunk:
    tokens: np.ndarray
    logp: np.ndarray
    counts: np.ndarray
    full: np.ndarray


class Script:
    """A sampler that writes `length(seed)` letters and a stop token, `chunk` at a time; remembers what it is fed."""

    def __init__(self, slots: int, length: Any, chunk: int = 2):
        self.slots, self.length, self.chunk = slots, length, chunk
        self.fed: list[tuple[int, list[int], bool]] = []
        self.left = np.zeros(slots, int)

    def extend(self, params: Any, rows: Any, prompts: Any, seeds: Any, *, restart: Any) -> First:
        tokens = []
        for row, prompt, seed, anew in zip(rows, prompts, seeds, restart, strict=True):
            self.fed.append((row, list(prompt), anew))
            self.left[row] = self.length(seed)
            tokens.append(self._next(row))
        return First(np.array(tokens), np.full(len(rows), -0.5), np.zeros(len(rows), bool))

    def _next(self, row: int) -> int:
        self.left[row] -= 1
        return ord("a") + row if self.left[row] >= 0 else STOP

    def decode(self, params: Any, active: np.ndarray, limits: np.ndarray) -> Chunk:
        tokens = np.full((self.slots, self.chunk), -1)
        counts = np.zeros(self.slots, int)
        for row in np.flatnonzero(active):
            while counts[row] < self.chunk and STOP not in tokens[row]:
                tokens[row, counts[row]] = self._next(row)
                counts[row] += 1
        return Chunk(tokens, np.full(tokens.shape, -0.25), counts, np.zeros(self.slots, bool))


class FakePool:
    """Episodes of `turns(task)` turns; a task named "broken" fails at its second step, "late" answers late."""

    def __init__(self, turns: Any):
        self.turns, self.queue, self.at = turns, [], {}
        self.polls = 0

    def reset(self, slot: int, task: str, seed: int) -> None:
        self.at[slot] = (task, 0)
        self.queue.append(Event(slot=slot, kind="reset", observation=self._see(task, 0)))

    def _see(self, task: str, step: int) -> Observation:
        return Observation(
            system="", prompts=(f"{task}{step}",), blind=str(step), anchor=f"s{step}", info={"goal": task}
        )

    def step(self, slot: int, response: str) -> None:
        task, step = self.at[slot]
        step += 1
        self.at[slot] = (task, step)
        if task == "broken" and step == 2:
            self.queue.append(Event(slot=slot, kind="failed", error="worker died"))
            return
        done = step >= self.turns(task)
        result = StepResult(
            observation=None if done else self._see(task, step),
            reward=float(done),
            penalty=-0.1 if step == 1 else 0.0,
            done=done,
            success=done,
            action=response,
            valid=step != 1,
            stop="success" if done else "",
        )
        self.queue.append(Event(slot=slot, kind="step", result=result, observation=result.observation))

    def poll(self, timeout_s: float) -> list[Event]:
        self.polls += 1
        events, self.queue = self.queue[::-1], []  # the order of arrival must not matter
        return events


def make(
    context: str, *, slots: int = 3, length: Any = lambda seed: 3, turns: Any = lambda task: 2, limit: int = 8
):
    settings = RolloutSettings(context, slots, 64, limit, gather_s=0.5, deadline_s=1.0)
    sampler, pool = Script(slots, length), FakePool(turns)
    return Rollout(pool, sampler, Words(), settings), sampler, pool


def draws(*tasks: str) -> list[Draw]:
    return [Draw(task, 0, n, n) for n, task in enumerate(tasks)]


def test_ids_are_what_the_sampler_read_and_wrote() -> None:
    rollout, sampler, _ = make("conversation")
    (t,) = rollout.collect(None, draws("x"))
    assert [turn.context_ids for turn in t.turns] == [[1, ord("x"), ord("0")], [2, ord("x"), ord("1")]]
    assert [turn.response_ids for turn in t.turns] == [[97, 97, 97, STOP]] * 2
    assert t.turns[0].logp == [-0.5, -0.25, -0.25, -0.25]
    assert sampler.fed == [(0, t.turns[0].context_ids, True), (0, t.turns[1].context_ids, False)]
    assert [turn.response for turn in t.turns] == ["aaa", "aaa"]
    assert (t.success, t.stop, t.outcome, t.turns[0].penalty) == (True, "success", 1.0, -0.1)
    assert [turn.valid for turn in t.turns] == [False, True]
    assert t.turns[1].anchor == "s1" and t.info == {"goal": "x"}


def test_step_context_restarts_every_turn() -> None:
    rollout, sampler, _ = make("step")
    (t,) = rollout.collect(None, draws("x"))
    assert [turn.context_ids for turn in t.turns] == [[1, ord("x"), ord("0")], [1, ord("x"), ord("1")]]
    assert [anew for _, _, anew in sampler.fed] == [True, True]


def test_more_draws_than_slots_in_order() -> None:
    """A finished episode leaves at once and the next takes its slot; results keep the order of the draws."""
    names = ["a", "bb", "c", "dd", "e"]
    rollout, sampler, _ = make("conversation", slots=2, turns=lambda task: 1 if len(task) == 1 else 4)
    out = rollout.collect(None, draws(*names))
    assert [t.draw.task for t in out] == names
    assert [len(t.turns) for t in out] == [1, 4, 1, 4, 1]
    starts = [row for row, _, anew in sampler.fed if anew]
    assert starts == [0, 1, 0, 0, 1] or starts[:3] == [0, 1, 0]


def test_responses_of_any_length_do_not_wait_for_each_other() -> None:
    rollout, _, _ = make("conversation", length=lambda seed: 1 if seed % 2 else 7, limit=16)
    out = rollout.collect(None, draws("a", "b", "c"))
    assert all(t.success for t in out)
    assert {len(turn.response_ids) for t in out for turn in t.turns} == {2, 8}


def test_a_cut_response_is_marked() -> None:
    rollout, _, _ = make("conversation", length=lambda seed: 50, limit=5)
    (t,) = rollout.collect(None, draws("x"))
    assert [(turn.stop, len(turn.response_ids)) for turn in t.turns] == [("length", 5)] * 2
    assert t.turns[1].context_ids[0] == 3, "the next turn closes the one that was cut"


def test_a_failed_episode_has_no_outcome() -> None:
    """A failure is excluded and named, its neighbours go on."""
    rollout, _, _ = make("conversation", turns=lambda task: 3)
    one, broken, two = rollout.collect(None, draws("a", "broken", "c"))
    assert (broken.failed, broken.stop, broken.success) == ("worker died", "failed", False)
    assert one.success and two.success


def test_context_limit_ends_an_episode() -> None:
    rollout, _, _ = make("conversation", turns=lambda task: 40)
    (t,) = rollout.collect(None, draws("x"))
    assert t.stop == "context" and not t.failed and not t.success
    assert sum(len(turn.context_ids) + len(turn.response_ids) for turn in t.turns) <= 64


def test_first_prompt_too_long_is_a_failure() -> None:
    rollout, sampler, _ = make("step")
    (t,) = rollout.collect(None, draws("x" * 70))
    assert "exceeds rollout.prompt_limit" in t.failed
    assert sampler.fed == []


def test_the_longest_variant_that_fits() -> None:
    rollout, _, pool = make("step")
    pool._see = lambda task, step: Observation(  # type: ignore[method-assign]
        system="", prompts=("h" * 80, "h" * 30, "h"), blind="", anchor="", info={}
    )
    (t,) = rollout.collect(None, draws("x"))
    assert {len(turn.context_ids) for turn in t.turns} == {31}


def test_same_draws_same_episodes() -> None:
    """Slots and the order of arrival change nothing: seeds depend on the draw and the turn only."""
    length = lambda seed: 1 + seed % 5  # noqa: E731
    few = make("conversation", slots=1, length=length)[0].collect(None, draws("a", "b", "c", "d"))
    many = make("conversation", slots=4, length=length)[0].collect(None, draws("a", "b", "c", "d"))
    lengths = [[len(turn.response_ids) for turn in t.turns] for t in few]
    assert lengths == [[len(turn.response_ids) for turn in t.turns] for t in many]
    assert len({n for row in lengths for n in row}) > 1


def test_unknown_context() -> None:
    with pytest.raises(ValueError, match="must be step or conversation"):
        make("chat")
