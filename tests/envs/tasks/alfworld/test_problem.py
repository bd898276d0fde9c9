"""The PDDL of made games and the wording of both forms."""

import pytest

from envs.tasks.alfworld.problem import Room, mangle, problem_text, wording
from envs.tasks.alfworld.source import Fixture, Scene


def test_mangle():
    assert mangle("Mug|+01.84|-00.79") == "Mug_bar__plus_01_dot_84_bar__minus_00_dot_79"


def test_problem(source):
    shelf = Fixture("Shelf|+01.00|+00.50|+00.00", "Shelf", "loc|4|0|0|30", 1.0, 0.0)
    drawer = Fixture("Drawer|+02.00|+00.50|+00.00", "Drawer", "loc|8|0|0|30", 2.0, 0.0)
    scene = Scene(1, "bedroom", (drawer, shelf), ("Mug",), False, ("loc|0|0|0|30",))
    room = Room(scene, "loc|0|0|0|30", (("Mug|+01.00|+00.60|+00.00", "Mug", shelf),))
    text = problem_text(source, room, "(:goal (and))\n)\n", name="t")
    mug = "Mug_bar__plus_01_dot_00_bar__plus_00_dot_60_bar__plus_00_dot_00"
    init = text[text.index("(:init") : text.index("(:goal")].splitlines()[1:-1]
    assert init == [
        "(atLocation agent1 loc_bar_0_bar_0_bar_0_bar_30)",
        "(receptacleType Drawer_bar__plus_02_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_00 DrawerType)",
        "(receptacleAtLocation Drawer_bar__plus_02_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_00 "
        "loc_bar_8_bar_0_bar_0_bar_30)",
        "(openable Drawer_bar__plus_02_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_00)",
        "(receptacleType Shelf_bar__plus_01_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_00 ShelfType)",
        "(receptacleAtLocation Shelf_bar__plus_01_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_00 "
        "loc_bar_4_bar_0_bar_0_bar_30)",
        "(canContain ShelfType MugType)",
        f"(objectType {mug} MugType)",
        f"(inReceptacle {mug} Shelf_bar__plus_01_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_00)",
        f"(objectAtLocation {mug} loc_bar_4_bar_0_bar_0_bar_30)",
        f"(cleanable {mug})",
        f"(coolable {mug})",
        f"(heatable {mug})",
        f"(isReceptacleObject {mug})",
        f"(pickupable {mug})",
    ]
    assert text.endswith("(:goal (and))\n)\n")
    assert room.key() == (("Mug", "Shelf|+01.00|+00.50|+00.00"),)


def test_wording(source):
    ours, released = wording(source, "move"), wording(source, "put")
    assert ours["grammar"] == source.grammar
    assert "help" in ours["domain"]
    assert "help" not in released["domain"]
    assert "help" not in released["grammar"]
    assert 'template :: "put {o} in/on {r}"' in released["grammar"]
    with pytest.raises(ValueError, match="unknown text form 'drop'; known"):
        wording(source, "drop")
