"""One ALFWorld game, read from its `game.tw-pddl`: what is where, what may be done with it, and what wins."""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from envs.tasks.alfworld import grammar as grammars
from envs.tasks.alfworld import pddl

NOTHING = "Nothing happens."


@dataclass(frozen=True)
class Game:
    """The initial state. Receptacles and objects are numbered in the order of their mangled ids, which is the order of
    every list in the text; their names carry numbers that run the other way ("cabinet 2, cabinet 1")."""

    path: str
    goal: str  # without the final full stop: "put some pencil on sidetable"
    goal_sentence: str  # as the introduction says it: "Your task is to: put some pencil on sidetable."
    form: str  # "put" or "move": how an object is put down, by the game's own grammar
    task: pddl.Task
    grammar: grammars.Grammar
    receptacles: tuple[str, ...]  # names: "cabinet 2"
    objects: tuple[str, ...]
    receptacle_types: tuple[str, ...]  # "cabinet"
    object_types: tuple[str, ...]
    locations: tuple[str, ...]  # names: "loc 5"
    place: tuple[int, ...]  # location of each receptacle
    start: int  # location of the agent
    openable: frozenset[int]
    opened: frozenset[int]
    inside: tuple[tuple[int, ...], ...]  # objects of each receptacle
    object_places: tuple[
        frozenset[int], ...
    ]  # locations of each object (slicing asks for it, not for the receptacle)
    nested: Mapping[int, tuple[int, ...]]  # object that holds objects -> what it holds
    facts: Mapping[str, frozenset[int]]  # one-place facts on objects: pickupable, ishot, cleanable, ...
    holds: int  # object in hand, -1 for none
    can_contain: frozenset[tuple[str, str]]  # (receptacle type, object type)
    sinks: frozenset[str]  # receptacle types that clean
    helps: bool  # whether `help` is a command

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Game":
        """Returns the game of a file; ValueError names the file when the fast engine cannot play it."""
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        try:
            return cls.parse(data, path=str(path))
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, data: Mapping[str, str], *, path: str = "") -> "Game":
        """Returns the game of a `game.tw-pddl` object (keys pddl_domain, grammar, pddl_problem)."""
        grammar, goal = grammars.parse(data["grammar"])
        sinks, helps = pddl.domain(data["pddl_domain"])
        facts, goal_text = pddl.facts(data["pddl_problem"])
        ids = sorted({argument for rows in facts.values() for row in rows for argument in row})
        names = entity_names(ids)

        spots = sorted(
            {
                row[-1]
                for key in ("receptacleatlocation", "objectatlocation", "atlocation")
                for row in facts.get(key, ())
            }
        )
        spot = {id: i for i, id in enumerate(spots)}
        where = dict(_pairs(facts, "receptacleatlocation"))
        if len(where) != len(facts["receptacleatlocation"]):
            raise ValueError("a receptacle stands at two locations; play it with engine='textworld'")
        receptacles = sorted(where)
        receptacle = {id: i for i, id in enumerate(receptacles)}
        receptacle_type = {id: kind.removesuffix("type") for id, kind in _pairs(facts, "receptacletype")}
        object_type = {id: kind.removesuffix("type") for id, kind in _pairs(facts, "objecttype")}
        objects = sorted(object_type)
        number = {id: i for i, id in enumerate(objects)}

        inside: list[set[int]] = [set() for _ in receptacles]
        for thing, holder in _pairs(facts, "inreceptacle"):
            inside[receptacle[holder]].add(number[thing])
        places: list[set[int]] = [set() for _ in objects]
        for thing, at in _pairs(facts, "objectatlocation"):
            if thing in number:
                places[number[thing]].add(spot[at])
        nested: dict[int, list[int]] = {number[row[0]]: [] for row in facts.get("isreceptacleobject", ())}
        for inner, outer in sorted(_pairs(facts, "inreceptacleobject")):
            nested.setdefault(number[outer], []).append(number[inner])
        held = facts.get("holds", [])
        return cls(
            path=path,
            goal=goal.strip().removesuffix("."),
            goal_sentence=grammar.rules["task"][0] + goal,
            form=grammar.form,
            task=pddl.task(goal_text),
            grammar=grammar,
            receptacles=tuple(names[id] for id in receptacles),
            objects=tuple(names[id] for id in objects),
            receptacle_types=tuple(receptacle_type[id] for id in receptacles),
            object_types=tuple(object_type[id] for id in objects),
            locations=tuple(names[id] for id in spots),
            place=tuple(spot[where[id]] for id in receptacles),
            start=spot[facts["atlocation"][0][1]],
            openable=_indices(facts, "openable", receptacle),
            opened=_indices(facts, "opened", receptacle),
            inside=tuple(tuple(sorted(things)) for things in inside),
            object_places=tuple(frozenset(at) for at in places),
            nested={outer: tuple(inner) for outer, inner in nested.items()},
            facts={
                key: _indices(facts, key, number)
                for key in (
                    "pickupable",
                    "toggleable",
                    "sliceable",
                    "cleanable",
                    "heatable",
                    "coolable",
                    "isreceptacleobject",
                    "istoggled",
                    "issliced",
                    "isclean",
                    "ishot",
                    "iscool",
                )
            },
            holds=number[held[0][1]] if held else -1,
            can_contain=frozenset(
                (holder.removesuffix("type"), thing.removesuffix("type"))
                for holder, thing in _pairs(facts, "cancontain")
            ),
            sinks=sinks,
            helps=helps and grammar.help is not None,
        )

    @cached_property
    def here(self) -> tuple[tuple[int, ...], ...]:
        """The receptacles of each location."""
        found: list[list[int]] = [[] for _ in self.locations]
        for receptacle, place in enumerate(self.place):
            found[place].append(receptacle)
        return tuple(tuple(row) for row in found)

    @cached_property
    def goal_objects(self) -> frozenset[int]:
        """Objects of the type the goal asks for that can be brought into the state it asks for."""
        able = {
            "pick_clean_then_place_in_recep": "cleanable",
            "pick_heat_then_place_in_recep": "heatable",
            "pick_cool_then_place_in_recep": "coolable",
        }.get(self.task.kind)
        return frozenset(
            o
            for o, kind in enumerate(self.object_types)
            if kind == self.task.object and (able is None or o in self.facts[able])
        )

    @cached_property
    def goal_receptacles(self) -> tuple[int, ...]:
        """Receptacles of the type the goal asks for."""
        return tuple(r for r, kind in enumerate(self.receptacle_types) if kind == self.task.receptacle)

    @cached_property
    def accepts(self) -> tuple[frozenset[str], ...]:
        """The object types each receptacle takes."""
        return tuple(
            frozenset(thing for holder, thing in self.can_contain if holder == kind)
            for kind in self.receptacle_types
        )


def entity_names(ids: list[str]) -> dict[str, str]:
    """Returns id -> name as ALFWorld's demangler gives them: numbers count down along the sorted ids."""
    kinds = {}
    for id in ids:
        kind, mark, _ = id.partition("_bar_")
        if mark:
            kinds[id] = kind + "basin" if "basin" in id else kind
    left = Counter(kinds.values())
    names = {}
    for id in sorted(ids):
        if id not in kinds:
            names[id] = re.sub("_(minus|plus|dot|comma)_", _symbol, id) + " "
            continue
        names[id] = f"{kinds[id]} {left[kinds[id]]}"
        left[kinds[id]] -= 1
    return names


def _symbol(match: re.Match[str]) -> str:
    return {"minus": "-", "plus": "+", "dot": ".", "comma": ","}[match.group(1)]


def _pairs(facts: Mapping[str, list[tuple[str, ...]]], key: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in facts.get(key, ())]


def _indices(
    facts: Mapping[str, list[tuple[str, ...]]], key: str, number: Mapping[str, int]
) -> frozenset[int]:
    return frozenset(number[row[0]] for row in facts.get(key, ()) if row[0] in number)
