"""Environment steps without a policy: ALFWorld episodes whose commands are drawn from the admissible ones.

A contestant (`serve`) of `spec["route"]`: "direct" plays them in this process, one after the other; "pool" plays
`batch` of them at a time through `envs.pool` and its `workers` processes, with everything that training sends.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from configs import arguments, common
from envs import parsing
from envs.pool import EnvPool
from envs.protocol import Observation
from envs.tasks.alfworld.environment import AlfworldEnvironment
from rl.progress import Progress
from tools.reopen import games

_DEADLINE_S = 120.0


class _Episodes:
    """Settings, tasks and commands that both routes share."""

    def __init__(self, spec: dict[str, Any]):
        config = common.base()
        arguments.overlay(config, {"env.games": {"train": 32, "valid_seen": 0, "valid_unseen": 0}})
        with Progress(0, live=False) as progress:
            home = games(config.env, progress)
        self.batch, self.steps = spec["sizes"]["batch"], spec["sizes"]["new"]
        self.settings = config.env.settings.to_dict() | {"context": "step", "data_dir": str(Path(home))}
        self.settings["step_limit"] = self.steps
        self.tasks = AlfworldEnvironment.tasks(self.settings, "train")
        self.about: dict[str, Any] = {"games": len(self.tasks)}

    def task(self, number: int) -> str:
        return self.tasks[number % len(self.tasks)]

    def answer(self, seen: Observation, draw: random.Random) -> str:
        command = draw.choice(seen.info["admissible"])
        return parsing.respond(command, mode=self.settings["parser"], thought="I try.")


class Direct(_Episodes):
    def run(self) -> dict[str, Any]:
        played = 0
        seat = AlfworldEnvironment(self.settings)
        for number in range(self.batch):
            seen: Observation | None = seat.reset(self.task(number), 0)
            draw = random.Random(number)
            while seen is not None:
                seen = seat.step(self.answer(seen, draw)).observation
                played += 1
        return {"tokens": played}


class Pooled(_Episodes):
    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        self._pool = EnvPool(
            name="alfworld",
            config=self.settings,
            workers=spec["workers"],
            slots=self.batch,
            deadline_s=_DEADLINE_S,
            restarts=0,
        )

    def run(self) -> dict[str, Any]:
        draws = [random.Random(number) for number in range(self.batch)]
        for slot in range(self.batch):
            self._pool.reset(slot, self.task(slot), 0)
        played = live = 0
        live = self.batch
        while live:
            for event in self._pool.poll(_DEADLINE_S):
                if event.kind == "failed":
                    raise RuntimeError(f"an episode failed: {event.error}")
                played += event.kind == "step"
                seen = event.observation or (event.result and event.result.observation)
                if seen:
                    self._pool.step(event.slot, self.answer(seen, draws[event.slot]))
                else:
                    live -= 1
        return {"tokens": played}


_ROUTES = {"direct": Direct, "pool": Pooled}


def open_work(spec: dict[str, Any]) -> Any:
    return _ROUTES[spec["route"]](spec)
