"""Reading the PDDL of a game: the facts of its initial state, its goal, and what its domain allows.

Fast Downward lower-cases all names, so everything returned here is lower case.
"""

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

_FACT = re.compile(r"\(([a-z]+)((?:\s+[^()\s]+)+)\s*\)")
_ACTIONS = re.compile(r"\(:action (\w+) ")
_SINKS = re.compile(r"(\(cleanable \?o\) \(or)((?: \(receptacletype \?r \w+\))+)(\))")
# The rules of the published domain, without comments, the `help` action and the list of sinks.
_DOMAIN_DIGEST = "39cfd321bf808f70"

_GOALS = {
    "pick_and_place_simple": (
        "(exists (?r - receptacle) (exists (?o - object) (and (inreceptacle ?o ?r) (objecttype ?o {object}type) "
        "(receptacletype ?r {receptacle}type))))"
    ),
    "look_at_obj_in_light": (
        "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objecttype ?ot {toggle}type) "
        "(toggleable ?ot) (istoggled ?ot) (receptacleatlocation ?r ?l) (atlocation ?a ?l) (inreceptacle ?ot ?r))) "
        "(exists (?o - object ?a - agent) (and (objecttype ?o {object}type) (holds ?a ?o)))"
    ),
    "pick_clean_then_place_in_recep": "cleanable isclean",
    "pick_heat_then_place_in_recep": "heatable ishot",
    "pick_cool_then_place_in_recep": "coolable iscool",
    "pick_two_obj_and_place": (
        "(exists (?r - receptacle) (exists (?o1 - object) (and (objecttype ?o1 {object}type) "
        "(receptacletype ?r {receptacle}type) (inreceptacle ?o1 ?r) (exists (?o2 - object) "
        "(and (not (= ?o1 ?o2)) (objecttype ?o2 {object}type) (receptacletype ?r {receptacle}type) "
        "(inreceptacle ?o2 ?r))))))"
    ),
}
TASK_TYPES = tuple(_GOALS)


@dataclass(frozen=True)
class Task:
    """What wins a game: one of the six published task types and the types of thing in it, lower case."""

    kind: str  # one of TASK_TYPES
    object: str  # "alarmclock"
    receptacle: str = ""  # "desk"; "" for look_at_obj_in_light
    toggle: str = ""  # "desklamp" for look_at_obj_in_light


def facts(problem: str) -> tuple[Mapping[str, list[tuple[str, ...]]], str]:
    """Returns the initial facts of a problem as predicate -> argument tuples, and the text of its goal."""
    text = problem.lower()
    init, goal = text.index("(:init"), text.index("(:goal")
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, arguments in _FACT.findall(text, init, goal):
        found[name].append(tuple(arguments.split()))
    return found, text[goal:]


def task(goal: str) -> Task:
    """Returns the task that a goal expression states; ValueError when it is none of the six published types."""
    text = _normal(goal)
    for kind, pattern in _goal_patterns().items():
        found = pattern.match(text)
        if found:
            return Task(kind=kind, **found.groupdict())
    raise ValueError(f"the goal is none of the six task types {TASK_TYPES}: {text[:300]!r}")


@functools.lru_cache(maxsize=16)
def domain(text: str) -> tuple[frozenset[str], bool]:
    """Returns the receptacle types that clean ("sinkbasin", ...) and whether the domain has the action `help`.

    Raises ValueError when other rules than the published ones are found.
    """
    rules = _normal(text)
    sinks = _SINKS.search(rules)
    if sinks is None:
        raise ValueError(
            "the domain has no CleanObject action of the published kind; play with engine='textworld'"
        )
    kinds = frozenset(name.removesuffix("type") for name in re.findall(r"\?r (\w+)\)", sinks.group(2)))
    helps = "help" in _ACTIONS.findall(rules)
    rules = _SINKS.sub(r"\1\3", rules)
    rules = re.sub(r" \(:action help .*?\(checked \?a\)\)\)", "", rules)
    digest = hashlib.sha256(rules.replace(" ", "").encode()).hexdigest()[:16]
    if digest != _DOMAIN_DIGEST:
        raise ValueError(
            f"the domain's rules ({digest=}) are not the published ones; play with engine='textworld'"
        )
    return kinds, helps


@functools.lru_cache(maxsize=1)
def _goal_patterns() -> dict[str, re.Pattern[str]]:
    patterns = {}
    for kind, goal in _GOALS.items():
        if not goal.startswith("("):
            able, state = goal.split()
            goal = (
                f"(exists (?r - receptacle) (exists (?o - object) (and ({able} ?o) (objecttype ?o {{object}}type) "
                f"(receptacletype ?r {{receptacle}}type) ({state} ?o) (inreceptacle ?o ?r))))"
            )
        text = re.escape(_normal(f"(:goal (and {goal}))"))
        for name in ("object", "receptacle", "toggle"):
            text = text.replace(re.escape(f"{{{name}}}"), rf"(?P<{name}>[a-z]+)", 1)
            text = text.replace(re.escape(f"{{{name}}}"), rf"(?P={name})")
        patterns[kind] = re.compile(text)
    return patterns


def _normal(text: str) -> str:
    """Lower case, no comments, one blank between tokens and none inside brackets."""
    text = re.sub(r";[^\n]*", "", text).lower()
    text = re.sub(r"\s*\(\s*", " (", text)
    return " ".join(re.sub(r"\s+\)", ")", text).split()).replace("( (", "((")
