"""What ALFWorld's package ships and games are made of: domain, grammar, floor plans and the table of what lies where.

The package is read as data, from its wheel or its directory, and never imported: importing it pulls a heavy stack and
creates directories.
"""

import ast
import functools
import io
import json
import os
import random
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOMS: dict[str, range] = {
    "kitchen": range(1, 31),
    "livingroom": range(201, 231),
    "bedroom": range(301, 331),
    "bathroom": range(401, 431),
}
# Receptacles that floor plans name but do not place: how many of each a room gets.
_UNPLACED = {"StoveBurner": 4}
_TABLE_HEIGHT = 0.8  # metres, for receptacles that are invented


@dataclass(frozen=True)
class Fixture:
    """A receptacle of a room."""

    id: str  # "Drawer|+01.63|+00.18|-01.21"
    kind: str  # "Drawer"
    location: str  # "loc|3|-2|1|30": quarter metres, quarter turns, degrees down
    x: float
    z: float


@dataclass(frozen=True)
class Scene:
    number: int
    room: str  # key of ROOMS
    fixtures: tuple[Fixture, ...]
    movables: tuple[str, ...]  # types of object that can be carried, sorted
    lamps: bool  # whether a desk lamp belongs to the room
    starts: tuple[str, ...]  # locations at which no receptacle is reached


@dataclass(frozen=True)
class Source:
    """The data of one alfworld package."""

    domain: str
    grammar: str
    contains: Mapping[str, frozenset[str]]  # receptacle type -> object types that may lie there
    actions: Mapping[str, frozenset[str]]  # "Heatable" -> object types
    movable_receptacles: frozenset[str]
    openable: frozenset[str]  # receptacle types with a door
    goals: Mapping[str, tuple[str, tuple[str, ...]]]  # task type -> (PDDL of the goal, sentences)
    scenes: Mapping[int, Scene]


@functools.lru_cache(maxsize=2)
def read_source(path: str) -> Source:
    """Returns the data of an alfworld package: a wheel file, an unpacked wheel, or the package directory."""
    read = _reader(path)
    constants = _constants(read("gen/constants.py").decode())
    contains = {holder: frozenset(things) for holder, things in constants["VAL_RECEPTACLE_OBJECTS"].items()}
    movable = frozenset(constants["MOVABLE_RECEPTACLES"])
    carried = frozenset().union(*contains.values())
    fixed = frozenset(contains) - movable
    scenes = {}
    for room, numbers in ROOMS.items():
        for number in numbers:
            stem = f"gen/layouts/FloorPlan{number}-"
            scenes[number] = _scene(
                number,
                room,
                json.loads(read(stem + "openable.json")),
                json.loads(read(stem + "objects.json")),
                np.load(io.BytesIO(read(stem + "layout.npy"))),
                fixed=fixed,
                carried=carried,
            )
    return Source(
        domain=read("data/alfred.pddl").decode(),
        grammar=read("data/alfred.twl2").decode(),
        contains={holder: contains[holder] for holder in fixed},
        actions={name: frozenset(things) for name, things in constants["VAL_ACTION_OBJECTS"].items()},
        movable_receptacles=movable,
        openable=frozenset(constants["OPENABLE_CLASS_LIST"]),
        goals=_goals(read("gen/goal_library.py").decode()),
        scenes=scenes,
    )


def _reader(path: str):
    root = Path(path)
    if root.is_file():
        archive = zipfile.ZipFile(root)
        return lambda name: archive.read(f"alfworld/{name}")
    for base in (root, root / "alfworld"):
        if (base / "gen" / "layouts").is_dir():
            return lambda name: (base / name).read_bytes()
    raise ValueError(
        f"source={path!r} is neither an alfworld wheel nor its package directory "
        "(pip download --no-deps alfworld==0.4.2)"
    )


def _constants(text: str) -> dict[str, Any]:
    """The literal assignments of a module, with `a["x"] = a["y"]` and `del a["x"]` followed."""
    found: dict[str, Any] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Delete) and isinstance(target := node.targets[0], ast.Subscript):
            del found[ast.unparse(target.value)][ast.literal_eval(target.slice)]
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name):
            try:
                found[target.id] = ast.literal_eval(value)
            except ValueError:
                continue  # computed: none of these is needed
        elif isinstance(target, ast.Subscript) and isinstance(value, ast.Subscript):
            table = found.get(ast.unparse(target.value))
            if table is not None:
                table[ast.literal_eval(target.slice)] = found[ast.unparse(value.value)][
                    ast.literal_eval(value.slice)
                ]
    return found


def _goals(text: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
            goal = ast.literal_eval(node.value)
            found[ast.literal_eval(target.slice)] = (
                goal["pddl"].replace(" # ", " - "),
                tuple(goal["templates"]),
            )
    return found


def _scene(
    number: int,
    room: str,
    placed: dict[str, list[float]],
    kinds: list[str],
    points: np.ndarray,
    *,
    fixed: frozenset[str],
    carried: frozenset[str],
) -> Scene:
    fixtures = []
    for name, (x, z, turn, down) in placed.items():
        parts = name.split("|")
        kind = parts[4] if len(parts) > 4 else parts[0]  # "Sink|+00.02|+00.77|-01.71|SinkBasin"
        if kind in fixed:
            fixtures.append(Fixture(name, kind, location(x, z, turn, down), float(parts[1]), float(parts[3])))
    # The same room in every game: what the plan leaves out is placed by the room's number alone.
    rng = random.Random(f"scene {number}")
    have = {fixture.kind for fixture in fixtures}
    for kind in sorted(set(kinds) & fixed - have):
        x, z = (float(value) for value in points[rng.randrange(len(points))])
        turn = 90 * rng.randrange(4)
        for copy in range(_UNPLACED.get(kind, 1)):
            at = x + round(rng.uniform(0.2, 0.5), 2), z + round(rng.uniform(0.2, 0.5), 2) + 0.1 * copy
            id = entity(kind.removesuffix("Basin"), at[0], _TABLE_HEIGHT, at[1])
            id = (
                f"{id}|{kind}" if kind.endswith("Basin") else id
            )  # "Sink|...|SinkBasin", as the plans write it
            fixtures.append(Fixture(id, kind, location(x, z, turn, 30), *at))
    taken = {fixture.location for fixture in fixtures}
    starts = [location(float(x), float(z), 90 * turn, 30) for x, z in points for turn in range(4)]
    return Scene(
        number=number,
        room=room,
        fixtures=tuple(sorted(fixtures, key=lambda fixture: fixture.id)),
        movables=tuple(sorted(set(kinds) & carried - fixed)),
        lamps="DeskLamp" in kinds,
        starts=tuple(start for start in starts if start not in taken),
    )


def location(x: float, z: float, turn: float, down: float) -> str:
    """Returns the id of a place to stand: ALFRED's grid of quarter metres and quarter turns."""
    return f"loc|{round(4 * x)}|{round(4 * z)}|{round(turn / 90) % 4}|{round(down)}"


def entity(kind: str, x: float, y: float, z: float) -> str:
    """Returns an id as ALFRED writes them: "Mug|+01.84|+00.79|-01.15"."""
    return "|".join([kind, *(f"{value:+06.2f}" for value in (x, y, z))])


def source_path(path: str | os.PathLike[str]) -> str:
    """Returns `path` in the form that `read_source` keeps its result under."""
    return str(Path(path).resolve())
