"""Writing the PDDL problem of a made game, and the domain and grammar of either text form."""

import re
from dataclasses import dataclass

from envs.tasks.alfworld.source import Fixture, Scene, Source

FORMS = ("move", "put")
# Types that the domain's actions name: the problem must declare them even in rooms that lack them.
_OBJECT_TYPES = ("Knife", "ButterKnife")
_RECEPTACLE_TYPES = ("Sink", "SinkBasin", "Microwave", "Fridge")
# From the wording of alfworld 0.4 to that of the released games.
_RELEASED = (
    ('template :: "move {o} to {r}"', 'template :: "put {o} in/on {r}"'),
    ("You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."),
    ("You arrive at {r.name}.", "You arrive at {lend.name}."),
)
_HELP_ACTION = re.compile(r"\naction help \{.*?\"\"\";\n\}\n?", re.S)
_HELP_RULE = re.compile(r"\(:action help.*?\n\)\n", re.S)
_SYMBOLS = str.maketrans({"|": "_bar_", "-": "_minus_", "+": "_plus_", ".": "_dot_", ",": "_comma_"})


@dataclass(frozen=True)
class Room:
    """A furnished scene."""

    scene: Scene
    start: str  # where the agent stands
    things: tuple[tuple[str, str, Fixture], ...]  # (id, type, where it lies)

    def key(self) -> tuple[tuple[str, str], ...]:
        """Returns what makes the room differ from another to one who plays: which type lies where."""
        return tuple(sorted((kind, fixture.id) for _, kind, fixture in self.things))


def wording(source: Source, form: str) -> dict[str, str]:
    """Returns the domain and grammar texts of a form. Comments of the domain are dropped to keep game files small."""
    domain = re.sub(r"\n\s*\n+", "\n", re.sub(r"[ \t]*;[^\n]*", "", source.domain))
    grammar = source.grammar
    if form not in FORMS:
        raise ValueError(f"unknown text form {form!r}; known: {FORMS}")
    if form == "put":
        for ours, released in _RELEASED:
            if ours not in grammar:
                raise ValueError(f"form='put' expects {ours!r} in the package's grammar; use alfworld 0.4.2")
            grammar = grammar.replace(ours, released)
        grammar, domain = _HELP_ACTION.sub("\n", grammar), _HELP_RULE.sub("", domain)
    return {"domain": domain, "grammar": grammar}


def problem_text(source: Source, room: Room, goal: str, *, name: str) -> str:
    """Returns the PDDL problem of a room with a goal expression "(:goal ...))" that closes it."""
    fixtures, things = room.scene.fixtures, room.things
    object_types = sorted({*_OBJECT_TYPES, *(kind for _, kind, _ in things)})
    receptacle_types = sorted({*_RECEPTACLE_TYPES, *(fixture.kind for fixture in fixtures)})
    locations = sorted({room.start, *(fixture.location for fixture in fixtures)})
    objects = [
        "agent1 - agent",
        *(f"{kind}Type - otype" for kind in object_types),
        *(f"{kind}Type - rtype" for kind in receptacle_types),
        *(f"{mangle(id)} - object" for id, _, _ in things),
        *(f"{mangle(fixture.id)} - receptacle" for fixture in fixtures),
        *(f"{mangle(location)} - location" for location in locations),
    ]
    init = [f"atLocation agent1 {mangle(room.start)}"]
    for fixture in fixtures:
        id = mangle(fixture.id)
        init += [
            f"receptacleType {id} {fixture.kind}Type",
            f"receptacleAtLocation {id} {mangle(fixture.location)}",
        ]
        if fixture.kind in source.openable:
            init.append(f"openable {id}")
    present = {kind for _, kind, _ in things}
    for kind in sorted({fixture.kind for fixture in fixtures}):
        init += [f"canContain {kind}Type {thing}Type" for thing in sorted(source.contains[kind] & present)]
    for id, kind, fixture in things:
        id = mangle(id)
        init += [
            f"objectType {id} {kind}Type",
            f"inReceptacle {id} {mangle(fixture.id)}",
            f"objectAtLocation {id} {mangle(fixture.location)}",
        ]
        abilities = [action.lower() for action, kinds in sorted(source.actions.items()) if kind in kinds]
        if kind in source.movable_receptacles:
            abilities.append("isReceptacleObject")
        if "toggleable" not in abilities:
            abilities.append("pickupable")
        init += [f"{ability} {id}" for ability in abilities]
    facts = "\n".join(f"({fact})" for fact in init)
    listed = "\n".join(objects)
    goal = re.sub(r"\n\s+", "\n", goal.strip())
    return f"(define (problem plan_{name})\n(:domain alfred)\n(:objects\n{listed}\n)\n(:init\n{facts}\n)\n{goal}\n"


def mangle(id: str) -> str:
    """Returns an id in the letters that PDDL allows."""
    return id.translate(_SYMBOLS)
