"""The text grammar of a game: its command templates and the sentences of its observations.

A game file carries its own grammar (TextWorld's `twl2`). Two are in use: the released games say "put X in/on Y" and
"You arrive at loc 5.", the grammar of alfworld 0.4 says "move X to Y" and "You arrive at desk 1." and knows `help`.
All wording is read from the file; which fact selects which sentence is checked against what `engine.py` implements,
so that a grammar of other logic is refused instead of being played wrongly.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_GOAL = re.compile(r'"Your task is to: ((?:[^"\\]|\\.)*)"')
_BLOCK = re.compile(r'grammar\s*::\s*"""(.*?)"""', re.S)
_ACTION = re.compile(r'action\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)"\s*;\s*feedback\s*::\s*"#([^"#]*)#"')
_LIST = re.compile(r"\[\{(.*?)\}\]")

_NAMED = "o.indefinite + ' ' + o.name"
_HERE = "atlocation(a:agent, l:location) & receptacleatlocation(r:receptacle, l:location)"
_FLOOR = (
    "atlocation(a:agent, l:location) & objectatlocation(o:object, l:location) & "
    "receptacleatlocation(r:receptacle, l:location) & not_inreceptacle(o:object, r:receptacle)"
)
_OPEN, _OPENABLE = "openable(r:receptacle) & opened(r:receptacle)", "openable(r:receptacle)"
_INSIDE = f"{_NAMED} | inreceptacle(o:object, r:receptacle)"

# Rule -> its alternatives, in order: (condition, list inside the sentence).
_LOGIC: dict[str, tuple[tuple[str, str], ...]] = {
    "intro": (("", ""),),
    "task": (("", ""),),
    "GotoLocation.feedback": (("", ""),),
    "OpenObject.feedback": (("", ""),),
    "CloseObject.feedback": (("", ""),),
    "PickupObject.feedback": (("", ""),),
    "PutObject.feedback": (("", ""),),
    "heatObject.feedback": (("", ""),),
    "cleanObject.feedback": (("", ""),),
    "coolObject.feedback": (("", ""),),
    "sliceObject.feedback": (("", ""),),
    "inventory.feedback": (("holdsany(a:agent)", f"{_NAMED} | holds(a:agent, o:object)"), ("", "")),
    "examineReceptacle.feedback": ((_OPEN, _INSIDE), (_OPENABLE, ""), ("", _INSIDE)),
    "examineObject.feedback": (
        (
            "isreceptacleobject(o:object)",
            "o2.indefinite + ' ' + o2.name | inreceptacleobject(o2:object, o:object)",
        ),
        ("isclean(o:object) & ishot(o:object) & issliced(o:object)", ""),
        ("isclean(o:object) & iscool(o:object) & issliced(o:object)", ""),
        ("isclean(o:object) & issliced(o:object)", ""),
        ("ishot(o:object) & issliced(o:object)", ""),
        ("iscool(o:object) & issliced(o:object)", ""),
        ("isclean(o:object) & ishot(o:object)", ""),
        ("isclean(o:object) & iscool(o:object)", ""),
        ("ishot(o:object)", ""),
        ("isclean(o:object)", ""),
        ("iscool(o:object)", ""),
        ("toggleable(o:object) & istoggled(o:object)", ""),
        ("toggleable(o:object) & not_istoggled(o:object)", ""),
        ("sliceable(o:object) & issliced(o:object)", ""),
        ("", ""),
    ),
    "toggleObject.feedback": (
        ("toggleable(o:object) & istoggled(o:object)", ""),
        ("toggleable(o:object)", ""),
        ("", ""),
    ),
    "look.feedback": ((_HERE, ""), ("", "")),
    "look-variations": (("", f"r.name | {_HERE}"),),
    "list_objects_on_the_floor": ((_FLOOR, f"#overview(o)# | {_FLOOR}"), ("", "")),
    "list_appliances": (
        (
            "receptacleatlocation(r:receptacle, l:location)",
            "#overview(r)# | receptacleatlocation(r:receptacle, l:location)",
        ),
        ("", ""),
    ),
    "list_empty": (("", ""),),
    "list_separator": (("", ""),),
    "list_last_separator": (("", ""),),
}
_OVERVIEWS = {"overview(o)": "{o.indefinite} {o.name}", "overview(r)": "{r.indefinite} {r.name or r.id}"}

# The commands that the engine speaks; how things are put down is the one difference between the forms.
_COMMANDS = {
    "GotoLocation": "go to {r}",
    "OpenObject": "open {r}",
    "CloseObject": "close {r}",
    "PickupObject": "take {o} from {r}",
    "CleanObject": "clean {o} with {r}",
    "HeatObject": "heat {o} with {r}",
    "CoolObject": "cool {o} with {r}",
    "ToggleObject": "use {o}",
    "SliceObject": "slice {co} with {ko}",
    "examineReceptacle": "examine {r}",
    "examineObject": "examine {o}",
    "look": "look",
    "inventory": "inventory",
}
_PUT = {"put {o} in/on {r}": "put", "move {o} to {r}": "move"}


@dataclass(frozen=True)
class Grammar:
    """What a game says. `rules` holds `str.format` texts over names (`{r}`, `{o}`, `{list}`, ...)."""

    form: str  # "put" (released games) or "move" (alfworld 0.4)
    rules: Mapping[str, tuple[str, ...]]  # rule -> its sentences, in the order of their conditions
    help: str | None  # the answer to `help`; None where the grammar has no such action


def parse(text: str) -> tuple[Grammar, str]:
    """Returns the grammar and the goal ("put some pencil on sidetable.") of a game file's `grammar` text.

    Raises ValueError for a grammar whose logic the fast engine does not implement.
    """
    found = _GOAL.search(text)
    if found is None:
        raise ValueError("the grammar holds no 'Your task is to: ...' sentence")
    goal = json.loads(f'"{found.group(1)}"')
    # Grammars differ in the goal only: everything else is parsed once and kept.
    return _parse(text[: found.start(1)] + text[found.end(1) :]), goal


@functools.lru_cache(maxsize=16)
def _parse(text: str) -> Grammar:
    raw: dict[str, list[dict[str, str]]] = {}
    for block in _BLOCK.findall(text):
        raw.update(json.loads(block))
    templates = {name: command for name, command, _ in _ACTION.findall(text)}
    for name, expected in _LOGIC.items():
        read = tuple((alt.get("condition", ""), _list_of(alt["rhs"])) for alt in raw.get(name, ()))
        if read != expected:
            raise ValueError(
                f"the grammar's rule {name!r} has other conditions; play it with engine='textworld'"
            )
    for name, expected in _OVERVIEWS.items():
        if [alt["rhs"] for alt in raw.get(name, ())] != [expected]:
            raise ValueError(
                f"the grammar's rule {name!r} is not {expected!r}; play it with engine='textworld'"
            )
    # "go to [{r.name | ...}]" lists the one receptacle of the action.
    templates["GotoLocation"] = _LIST.sub("{r}", templates.get("GotoLocation", ""))
    for action, command in _COMMANDS.items():
        if templates.get(action) != command:
            raise ValueError(f"the command of {action} is {templates.get(action)!r}, not {command!r}")
    put = templates.get("PutObject", "")
    if put not in _PUT:
        raise ValueError(f"unknown text form {put!r}; known: {', '.join(map(repr, _PUT))}")
    rules = {name: tuple(_sentence(alt["rhs"]) for alt in raw[name]) for name in _LOGIC}
    helping = _sentence(raw["help.feedback"][0]["rhs"]) if "help" in templates else None
    return Grammar(_PUT[put], MappingProxyType(rules), helping)


def _list_of(rhs: str) -> str:
    found = _LIST.search(rhs)
    return found.group(1) if found else ""


def _sentence(rhs: str) -> str:
    """TextWorld's markup as a format string; its parser drops line ends before the first word."""
    text = _LIST.sub("{list}", rhs.lstrip("\n"))
    text = re.sub(r"#([\w-]+)(?:\.feedback)?#", lambda m: "{" + m.group(1).replace("-", "_") + "}", text)
    return re.sub(r"\{(\w+)\.name\}", r"{\1}", text)
