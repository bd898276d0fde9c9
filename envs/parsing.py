"""From a response to an action and whether the response had the demanded form."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

MODES = ("tags", "plain")
VALIDITIES = ("format", "admissible")

# The block of unified ideographs that verl-agent's projection refuses: a policy that drifts into Chinese is invalid.
_CJK = re.compile(r"[\u4e00-\u9fff]")


class Parsed(NamedTuple):
    action: str  # what is sent to the task, valid or not
    valid: bool


def parse(
    response: str, *, mode: str, validity: str = "format", admissible: Collection[str] = (), tail: int = 30
) -> Parsed:
    """Returns the action in `response`.

    mode "tags" (verl-agent's ALFWorld projection): the lower-cased text between the first <action> and the first
      </action>; valid when that pair and a <think> and a </think> are there and no CJK ideograph is. Without the pair
      the last `tail` characters are sent (30 in ALFWorld, 20 in WebShop).
    mode "plain": the whole response, stripped; valid when it is one non-empty line.
    validity "admissible" demands in addition that the action is in `admissible`.
    """
    if mode == "tags":
        lowered = response.lower()
        start, end = lowered.find("<action>"), lowered.find("</action>")
        found = 0 <= start < end
        action = lowered[start + len("<action>") : end].strip() if found else lowered[-tail:]
        valid = found and "<think>" in response and "</think>" in response and not _CJK.search(response)
    elif mode == "plain":
        action = response.strip()
        valid = bool(action) and "\n" not in action
    else:
        raise ValueError(f"{mode=} must be one of {MODES}; set config.env.settings.parser")
    if validity == "admissible":
        valid = valid and action in admissible
    elif validity != "format":
        raise ValueError(f"{validity=} must be one of {VALIDITIES}; set config.env.settings.validity")
    return Parsed(action=action, valid=valid)


def respond(action: str, *, mode: str, thought: str = "") -> str:
    """Returns a valid response that `parse` maps to `action`: what a demonstration says."""
    if mode == "plain":
        return action
    return f"<think>{thought}</think><action>{action}</action>"
