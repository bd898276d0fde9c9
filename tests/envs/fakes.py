"""A counting game that can be told, by its responses, to misbehave in every way a worker must survive."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from envs.base import Environment
from envs.protocol import Demonstration, DemoTurn, Observation, StepResult


class FakeEnvironment(Environment):
    """Counts steps up to config["limit"]; wins on "win". Task ids: "<split>-0".."<split>-3"; "bad" cannot be reset."""

    def __init__(self, config: dict[str, Any]):
        super().__init__(config)
        if unknown := config.keys() - {"limit", "open"}:
            raise ValueError(f"unknown config keys {sorted(unknown)}")
        if config.get("open") == "die":
            sys.stderr.write("last words\n")
            sys.stderr.flush()
            os._exit(3)
        self._limit = config.get("limit", 5)

    @classmethod
    def tasks(cls, config: dict[str, Any], split: str) -> list[str]:
        if split != "train":
            raise ValueError(f"unknown {split=}")
        return [f"{split}-{number}" for number in range(4)]

    def reset(self, task_id: str, seed: int) -> Observation:
        print("a stray print at reset")
        if task_id == "bad":
            raise RuntimeError("cannot reset")
        self._task, self._seed, self._count = task_id, seed, 0
        return self._observe()

    def step(self, response: str) -> StepResult:
        if response == "crash":
            os._exit(9)
        if response == "raise":
            raise RuntimeError("boom")
        if response == "exit":
            sys.exit(0)
        if response == "nan":
            return StepResult(self._observe(), float("nan"), 0.0, False, False, response, True, "")
        if response == "print":
            print('{"id": 1, "kind": "step"}\nnot json', flush=True)
            os.write(1, b"raw bytes on descriptor 1\n")
            subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        if response == "chatty":
            sys.stderr.write("x" * (1 << 20))
        if response.startswith("sleep "):
            time.sleep(float(response.split()[1]))
        if response.startswith("spawn "):  # a child that outlives its parent unless somebody ends it
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            with open(response.split()[1], "w") as file:
                file.write(f"{os.getpid()} {child.pid}")
        if response == "environ":
            response = " ".join(sorted(os.environ))
        self._count += 1
        success = response == "win"
        stop = "success" if success else "step_limit" if self._count >= self._limit else ""
        return StepResult(
            observation=None if stop else self._observe(),
            reward=float(success),
            penalty=0.0 if response else -0.1,
            done=bool(stop),
            success=success,
            action=response,
            valid=bool(response),
            stop=stop,
        )

    def demonstrate(self, task_id: str, seed: int) -> Demonstration:
        return Demonstration(turns=(DemoTurn(self.reset(task_id, seed), "win", 1.0),), success=True)

    def _observe(self) -> Observation:
        text = f"{self._task} {self._seed} {self._count}"
        return Observation(
            system="",
            prompts=(text,),
            blind=str(self._count),
            anchor=str(self._count),
            info={"pid": os.getpid()},
        )


class NotAnEnvironment:
    pass
