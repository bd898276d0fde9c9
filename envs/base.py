"""What a task must provide to be played."""

from __future__ import annotations

import abc
from typing import Any

from envs.protocol import Demonstration, Observation, StepResult


class Environment(abc.ABC):
    """One seat at a task. Episodes are single-use: `reset`, then `step` until `done`, then `reset` again.

    An exception out of any method means that the episode is lost: the server reports it as failed and drops this
    object. Standard output may be written freely (it is not the wire). Prompts, parsing, validity and the penalty of
    invalid actions belong to the environment, which alone knows what in its texts is goal, history or observation.
    """

    def __init__(self, config: dict[str, Any]):
        """`config` is a plain dict of JSON values; raise ValueError on a bad one, naming the key."""
        self.config = config

    @classmethod
    @abc.abstractmethod
    def tasks(cls, config: dict[str, Any], split: str) -> list[str]:
        """Returns the ids of a split's tasks in a fixed order."""

    @abc.abstractmethod
    def reset(self, task_id: str, seed: int) -> Observation:
        """Starts an episode; equal arguments give equal episodes."""

    @abc.abstractmethod
    def step(self, response: str) -> StepResult:
        """Plays one response of the policy, given as text without special tokens."""

    def demonstrate(self, task_id: str, seed: int) -> Demonstration:
        """Returns a whole episode of the task's expert. Ends any running episode."""
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    def close(self) -> None:  # noqa: B027 - optional
        """Frees what the seat holds."""
