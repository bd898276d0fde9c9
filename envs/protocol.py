"""The values that cross between the trainer and an environment worker, and their JSON form.

Nothing here is executable and nothing is pickled: a worker (perhaps on another machine, perhaps running code that a
policy wrote) can only send data, and `from_dict` checks it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

VERSION = 1  # of the wire protocol; a server refuses a pool that speaks another

STOPS = ("", "success", "step_limit", "failure")


class ProtocolError(ValueError):
    """A message that does not have the agreed form."""


def field(data: Any, name: str, kind: type, *, optional: bool = False) -> Any:
    """Returns `data[name]`, checked to be of `kind` (an int passes as a finite float, a bool as neither)."""
    if not isinstance(data, dict):
        raise ProtocolError(f"expected an object, got {type(data).__name__}")
    value = data.get(name)
    if value is None and optional:
        return None
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise ProtocolError(f"field {name!r} must be finite")
    if type(value) is not kind:
        raise ProtocolError(f"field {name!r} must be {kind.__name__}, got {type(value).__name__}")
    return value


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a policy may read in one turn.

    prompts: user texts, longest history first, of which the reader takes the first that fits; one in a conversation.
    blind: the user text with goal and history removed. anchor: canonical state, equal iff two turns share a step group.
    """

    system: str
    prompts: tuple[str, ...]
    blind: str
    anchor: str
    info: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "prompts": self.prompts,
            "blind": self.blind,
            "anchor": self.anchor,
            "info": self.info,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Observation:
        prompts = field(data, "prompts", list)
        if not prompts or not all(type(prompt) is str for prompt in prompts):
            raise ProtocolError("field 'prompts' must be a non-empty list of str")
        return cls(
            system=field(data, "system", str),
            prompts=tuple(prompts),
            blind=field(data, "blind", str),
            anchor=field(data, "anchor", str),
            info=field(data, "info", dict),
        )


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What one response brought. `observation` is None iff `done`; `penalty` <= 0 is not part of `reward`.

    action: the text sent to the task. valid: whether the response had the demanded form. stop: one of STOPS, "" iff
    not done.
    """

    observation: Observation | None
    reward: float
    penalty: float
    done: bool
    success: bool
    action: str
    valid: bool
    stop: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reward) and math.isfinite(self.penalty)):
            raise ProtocolError(f"{self.reward=} and {self.penalty=} must be finite")
        if self.penalty > 0:
            raise ProtocolError(f"{self.penalty=} must not be positive")
        if self.stop not in STOPS or bool(self.stop) != self.done or (self.observation is None) != self.done:
            raise ProtocolError(
                f"{self.done=} disagrees with {self.stop=} (one of {STOPS}) or with the observation"
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "observation": None if self.observation is None else self.observation.to_dict(),
            "reward": self.reward,
            "penalty": self.penalty,
            "done": self.done,
            "success": self.success,
            "action": self.action,
            "valid": self.valid,
            "stop": self.stop,
        }

    @classmethod
    def from_dict(cls, data: Any) -> StepResult:
        observation = field(data, "observation", dict, optional=True)
        return cls(
            observation=None if observation is None else Observation.from_dict(observation),
            reward=field(data, "reward", float),
            penalty=field(data, "penalty", float),
            done=field(data, "done", bool),
            success=field(data, "success", bool),
            action=field(data, "action", str),
            valid=field(data, "valid", bool),
            stop=field(data, "stop", str),
        )


@dataclasses.dataclass(frozen=True)
class DemoTurn:
    """One demonstrated turn; `weight` multiplies the cloning loss of its response (0: shown, not imitated)."""

    observation: Observation
    response: str
    weight: float

    def to_dict(self) -> dict[str, Any]:
        return {"observation": self.observation.to_dict(), "response": self.response, "weight": self.weight}

    @classmethod
    def from_dict(cls, data: Any) -> DemoTurn:
        observation = Observation.from_dict(field(data, "observation", dict))
        return cls(
            observation=observation,
            response=field(data, "response", str),
            weight=field(data, "weight", float),
        )


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """A whole episode played by the task's own expert, as the policy would have seen it."""

    turns: tuple[DemoTurn, ...]
    success: bool

    def to_dict(self) -> dict[str, Any]:
        return {"turns": [turn.to_dict() for turn in self.turns], "success": self.success}

    @classmethod
    def from_dict(cls, data: Any) -> Demonstration:
        turns = tuple(DemoTurn.from_dict(turn) for turn in field(data, "turns", list))
        return cls(turns=turns, success=field(data, "success", bool))


@dataclasses.dataclass(frozen=True)
class Event:
    """An answer of the pool. Exactly the field named by `kind` is set: a reset sets `observation`, a step `result`.

    kind "failed": the episode is lost (`error` says why) and must be left out, never scored 0.
    """

    slot: int
    kind: str  # reset | step | demonstration | failed
    observation: Observation | None = None
    result: StepResult | None = None
    demonstration: Demonstration | None = None
    error: str = ""

    @classmethod
    def from_reply(cls, slot: int, expected: str, data: dict[str, Any]) -> Event:
        """Returns the event of a reply to a request of kind `expected`; a malformed reply is a failed event."""
        try:
            kind = field(data, "kind", str)
            if kind == "failed":
                return cls(slot=slot, kind=kind, error=field(data, "error", str))
            if kind != expected:
                raise ProtocolError(f"expected a reply of kind {expected!r}, got {kind!r}")
            value = field(data, "value", dict)
            if kind == "reset":
                return cls(slot=slot, kind=kind, observation=Observation.from_dict(value))
            if kind == "step":
                return cls(slot=slot, kind=kind, result=StepResult.from_dict(value))
            return cls(slot=slot, kind=kind, demonstration=Demonstration.from_dict(value))
        except ProtocolError as error:
            return cls(slot=slot, kind="failed", error=f"malformed reply: {error}")
