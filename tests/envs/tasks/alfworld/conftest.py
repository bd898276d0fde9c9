"""The alfworld package as a source of rooms, and a small kitchen built by hand to play in."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from envs.tasks.alfworld.problem import Room, problem_text, wording
from envs.tasks.alfworld.source import Fixture, Scene, Source, read_source, source_path
from rl import downloads

# A counter with a drawer at the same place, a fridge, a sink, a microwave and a table with a lamp.
FIXTURES = (
    ("CounterTop|+00.00|+00.90|+00.00", "loc|0|0|0|30"),
    ("Drawer|+00.10|+00.50|+00.10", "loc|0|0|0|30"),
    ("Drawer|+01.00|+00.50|+00.10", "loc|4|0|0|30"),
    ("Fridge|+02.00|+00.00|+00.00", "loc|8|0|0|30"),
    ("Microwave|+03.00|+01.00|+00.00", "loc|12|0|0|30"),
    ("SideTable|+04.00|+00.00|+00.00", "loc|16|0|0|30"),
    ("Sink|+05.00|+00.80|+00.00|SinkBasin", "loc|20|0|0|30"),
)
THINGS = (
    ("Apple|+00.01|+00.95|+00.02", 0),
    ("Apple|+02.01|+00.50|+00.02", 3),
    ("ButterKnife|+01.01|+00.50|+00.02", 2),
    ("DeskLamp|+04.00|+00.90|+00.00", 5),
    ("Mug|+04.10|+00.90|+00.00", 5),
    ("Pan|+00.20|+00.95|+00.02", 0),
)


@pytest.fixture(scope="session")
def alfworld_source() -> str:
    """Path of the alfworld package: $AGENTROPY_ALFWORLD_SOURCE, the installed one, or its wheel through pip."""
    if named := os.environ.get("AGENTROPY_ALFWORLD_SOURCE"):
        return source_path(named)
    try:
        return source_path(downloads.package_wheel("alfworld", "0.4.2"))
    except RuntimeError as error:
        pytest.skip(f"no alfworld package to make games from: {error}")


@pytest.fixture(scope="session")
def source(alfworld_source: str) -> Source:
    return read_source(alfworld_source)


@pytest.fixture(scope="session")
def kitchen(source: Source) -> Callable[..., dict[str, Any]]:
    """Builds the kitchen as a game file's content: kitchen(task type, object, receptacle, form=, goal=, extra=)."""

    def build(
        kind: str,
        thing: str,
        receptacle: str = "",
        *,
        form: str = "move",
        goal: str = "do it",
        extra: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        fixtures = tuple(
            Fixture(id, id.split("|")[-1] if id.count("|") == 4 else id.split("|")[0], place, 0.0, 0.0)
            for id, place in FIXTURES
        )
        scene = Scene(1, "kitchen", fixtures, (), True, ("loc|-4|0|0|30",))
        room = Room(scene, scene.starts[0], tuple((id, id.split("|")[0], fixtures[at]) for id, at in THINGS))
        names = {"obj": thing, "recep": receptacle, "toggle": "DeskLamp", "mrecep": ""}
        problem = problem_text(source, room, source.goals[kind][0].format(**names), name="test")
        facts = "".join(f"({fact})\n" for fact in extra)
        texts = wording(source, form)
        return {
            "pddl_domain": texts["domain"],
            "grammar": texts["grammar"].replace("UNKNOWN GOAL", goal),
            "pddl_problem": problem.replace("(:init\n", f"(:init\n{facts}"),
            "solvable": True,
        }

    return build
