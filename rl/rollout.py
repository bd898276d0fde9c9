"""Plays episodes: environments on the host, the policy on the device, every slot at its own pace.

A slot holds one episode. Whenever an environment has answered, its slot's new prompt is fed to the sampler;
whenever a response has ended, it goes to its environment. A finished episode leaves at once; the next takes its slot.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from envs.protocol import Event, Observation, StepResult
from rl.types import Draw, Trajectory, Turn


class Sampler(Protocol):
    def extend(self, params: Any, rows: Any, prompts: Any, seeds: Any, *, restart: Any) -> Any: ...
    def decode(self, params: Any, active: Any, limits: Any) -> Any: ...


class Pool(Protocol):
    def reset(self, slot: int, task: str, seed: int) -> None: ...
    def step(self, slot: int, response: str) -> None: ...
    def poll(self, timeout_s: float) -> list[Event]: ...


@dataclasses.dataclass
class _Episode:
    trajectory: Trajectory
    context: list[int]  # ids read since the last response
    cached: int = 0  # ids of the row so far (conversation)
    response: list[int] = dataclasses.field(default_factory=list)
    logp: list[float] = dataclasses.field(default_factory=list)
    observation: Observation | None = None
    prompt: str = ""
    blind: str = ""


@dataclasses.dataclass(frozen=True)
class RolloutSettings:
    context: str
    slots: int
    prompt_limit: int
    response_limit: int
    gather_s: float
    deadline_s: float


class Rollout:
    """Collects trajectories. `collect` returns one for each draw, in the order of the draws."""

    def __init__(self, pool: Pool, sampler: Sampler, tokenizer: Any, settings: RolloutSettings):
        if settings.context not in ("step", "conversation"):
            raise ValueError(f"{settings.context=} must be step or conversation")
        self.pool, self.sampler, self.tokenizer, self.settings = pool, sampler, tokenizer, settings
        self.stops = frozenset(tokenizer.stop_ids)

    def collect(
        self, params: Any, draws: Sequence[Draw], *, on_episode: Callable[[Trajectory], None] | None = None
    ):
        """Plays every draw to its end. A failed episode comes back with `failed` set, never with a reward."""
        queue = collections.deque(enumerate(draws))
        done: list[Trajectory | None] = [None] * len(draws)
        index: dict[int, int] = {}  # slot -> draw
        live: dict[int, _Episode] = {}
        waiting: set[int] = set()  # slots whose environment has yet to answer
        writing: set[int] = set()  # slots whose response is being sampled
        free = list(range(min(self.settings.slots, len(draws))))[::-1]

        def finish(slot: int) -> None:
            trajectory = live.pop(slot).trajectory
            done[index.pop(slot)] = trajectory
            waiting.discard(slot)
            writing.discard(slot)
            free.append(slot)
            free.sort(reverse=True)  # the lowest slot next, whatever the order of arrival
            if on_episode:
                on_episode(trajectory)

        while queue or live:
            while queue and free:
                slot = free.pop()
                index[slot], draw = queue.popleft()
                live[slot] = _Episode(Trajectory(draw), [])
                waiting.add(slot)
                self.pool.reset(slot, draw.task, draw.seed)
            ready = []
            for event in self._gather(waiting, bool(writing)):
                if event.slot not in live:
                    continue
                waiting.discard(event.slot)
                if self._arrive(live[event.slot], event):
                    ready.append(event.slot)
                else:
                    finish(event.slot)
            writing.update(self._extend(params, ready, live) if ready else ())
            for slot in self._ended(ready, live, writing):  # the first token of a response may already end it
                self._send(slot, live[slot], writing, waiting)
            if writing:
                self._decode(params, live, writing)
                for slot in self._ended(sorted(writing), live, writing):
                    self._send(slot, live[slot], writing, waiting)
            for slot in [slot for slot, episode in live.items() if episode.trajectory.stop]:
                finish(slot)  # no room for another prompt or token
        return [t for t in done if t is not None]

    def _gather(self, waiting: set[int], writing: bool) -> list[Event]:
        """Events of this round by slot: all that are due within `gather_s`, so that batches are full and repeatable."""
        events: dict[int, Event] = {}
        started = time.monotonic()
        while waiting - events.keys():
            passed = time.monotonic() - started
            if passed > self.settings.gather_s and (writing or events):
                break
            if passed > 2 * self.settings.deadline_s + 60:
                raise TimeoutError(
                    f"the environment pool owes an answer for slots {sorted(waiting - events.keys())[:8]}"
                )
            for event in self.pool.poll(self.settings.gather_s if (writing or events) else 1.0):
                events[event.slot] = event
        return [events[slot] for slot in sorted(events)]

    def _arrive(self, episode: _Episode, event: Event) -> bool:
        """Takes an environment's answer; False if the episode is over."""
        trajectory = episode.trajectory
        if event.kind == "failed":
            trajectory.failed, trajectory.stop = event.error or "environment failed", "failed"
            return False
        observation = event.observation
        if event.kind == "step":
            result = event.result
            assert isinstance(result, StepResult)
            turn = trajectory.turns[-1]
            turn.reward, turn.penalty, turn.action, turn.valid = (
                result.reward,
                result.penalty,
                result.action,
                result.valid,
            )
            observation = result.observation
            if result.done or observation is None:
                trajectory.success, trajectory.stop = result.success, result.stop
                return False
        assert observation is not None
        trajectory.info = trajectory.info or dict(observation.info)
        episode.observation, episode.blind = observation, observation.blind
        return self._prompt(episode, observation)

    def _prompt(self, episode: _Episode, observation: Observation) -> bool:
        """Encodes the next context, the longest that fits; False if none does."""
        settings, turns = self.settings, episode.trajectory.turns
        for text in observation.prompts:
            if settings.context == "conversation" and turns:
                ids = self.tokenizer.continuation(text, closed=turns[-1].stop == "stop")
            else:
                ids = self.tokenizer.prompt(observation.system, text)
            room = (
                settings.prompt_limit
                if settings.context == "step"
                else settings.prompt_limit - settings.response_limit
            )
            used = 0 if settings.context == "step" else episode.cached
            if used + len(ids) <= room:
                episode.context, episode.prompt = ids, text
                return True
        episode.trajectory.stop = "context"
        if not turns:
            episode.trajectory.failed = f"first prompt of {len(ids)} tokens exceeds rollout.prompt_limit"
        return False

    def _extend(self, params: Any, ready: list[int], live: dict[int, _Episode]) -> list[int]:
        """Feeds the new contexts and samples the first token of each response; returns the slots now writing."""
        restart, prompts, seeds = [], [], []
        for slot in ready:
            episode = live[slot]
            turns = len(episode.trajectory.turns)
            restart.append(self.settings.context == "step" or turns == 0)
            prompts.append(episode.context)
            seeds.append((episode.trajectory.draw.seed + turns * 2654435761) % 2**32)
            episode.response, episode.logp = [], []
            episode.cached = len(episode.context) + (0 if restart[-1] else episode.cached)
        first = self.sampler.extend(params, ready, prompts, seeds, restart=restart)
        writing = []
        for n, slot in enumerate(ready):
            if first.full[n]:
                live[slot].trajectory.stop = "context"
                continue
            writing.append(slot)
            live[slot].response.append(int(first.tokens[n]))
            live[slot].logp.append(float(first.logp[n]))
        return writing

    def _decode(self, params: Any, live: dict[int, _Episode], writing: set[int]) -> None:
        active = np.zeros(self.settings.slots, bool)
        active[list(writing)] = True
        chunk = self.sampler.decode(
            params, active, np.full(self.settings.slots, self.settings.response_limit, np.int32)
        )
        for slot in writing:
            count = int(chunk.counts[slot])
            live[slot].response.extend(chunk.tokens[slot, :count].tolist())
            live[slot].logp.extend(chunk.logp[slot, :count].tolist())
            if chunk.full[slot]:
                live[slot].trajectory.stop = "context"

    def _ended(self, slots: Sequence[int], live: dict[int, _Episode], writing: set[int]) -> list[int]:
        limit = self.settings.response_limit
        return [
            slot
            for slot in slots
            if slot in writing
            and (live[slot].response[-1] in self.stops or len(live[slot].response) >= limit)
        ]

    def _send(self, slot: int, episode: _Episode, writing: set[int], waiting: set[int]) -> None:
        """Sends a response that has ended to its environment."""
        stopped = episode.response[-1] in self.stops
        text = self.tokenizer.decode(episode.response[:-1] if stopped else episode.response)
        assert episode.observation is not None
        episode.trajectory.stop = ""  # a response that fills the last place still counts
        episode.trajectory.turns.append(
            Turn(
                context_ids=episode.context,
                response_ids=episode.response,
                logp=episode.logp,
                stop="stop" if stopped else "length",
                prompt=episode.prompt,
                system=episode.observation.system,
                blind=episode.blind,
                anchor=episode.observation.anchor,
                response=text,
            )
        )
        episode.cached += len(episode.response)
        writing.discard(slot)
        waiting.add(slot)
        self.pool.step(slot, text)
