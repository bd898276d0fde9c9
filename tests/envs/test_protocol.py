"""Values survive JSON; what is not a value is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envs.protocol import Demonstration, DemoTurn, Event, Observation, ProtocolError, StepResult

SEEN = Observation(
    system="s", prompts=("long", "short"), blind="b", anchor="a\ud800é", info={"step": 1, "l": ["x"]}
)
RESULT = StepResult(SEEN, 0.5, -0.1, False, False, "look", False, "")
SHOWN = Demonstration(turns=(DemoTurn(SEEN, "look", 0.0), DemoTurn(SEEN, "go", 1.0)), success=True)


@pytest.mark.parametrize(
    "value", [SEEN, RESULT, StepResult(None, 10.0, 0.0, True, True, "a", True, "success"), SHOWN]
)
def test_round_trip(value: Any) -> None:
    assert type(value).from_dict(json.loads(json.dumps(value.to_dict()))) == value


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": float("nan")},
        {"reward": float("inf")},
        {"reward": 10**400},
        {"reward": None},
        {"reward": True},
        {"reward": "1"},
        {"penalty": 0.1},
        {"penalty": float("-inf")},
        {"done": 1},
        {"done": True},
        {"stop": "success"},
        {"stop": "tired"},
        {"observation": None},
        {"observation": []},
        {"observation": {**SEEN.to_dict(), "prompts": []}},
        {"observation": {**SEEN.to_dict(), "prompts": [1]}},
        {"observation": {**SEEN.to_dict(), "blind": None}},
        {"action": 3},
    ],
)
def test_a_bad_result_is_a_failed_event(changes: dict[str, Any]) -> None:
    data = RESULT.to_dict() | {"observation": SEEN.to_dict() | {"prompts": list(SEEN.prompts)}} | changes
    event = Event.from_reply(3, "step", {"kind": "step", "value": data})
    assert (event.slot, event.kind, event.result) == (3, "failed", None)
    assert event.error.startswith("malformed reply")


@pytest.mark.parametrize(
    "reply", [{}, {"kind": "step"}, {"kind": "reset", "value": {}}, {"kind": 3}, {"kind": "failed"}]
)
def test_a_bad_reply_is_a_failed_event(reply: dict[str, Any]) -> None:
    assert Event.from_reply(0, "step", reply).kind == "failed"


def test_integers_are_numbers() -> None:
    data = json.loads(json.dumps(RESULT.to_dict())) | {"reward": 1, "penalty": 0}
    assert StepResult.from_dict(data).reward == 1.0


def test_values_check_themselves() -> None:
    with pytest.raises(ProtocolError):
        StepResult(None, float("nan"), 0.0, True, False, "a", True, "failure")
