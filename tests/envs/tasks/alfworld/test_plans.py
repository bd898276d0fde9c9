"""Shortest walkthroughs."""

import pytest

from envs.tasks.alfworld.game import Game
from envs.tasks.alfworld.plans import put_command, walkthrough


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (
            ("pick_and_place_simple", "Mug", "CounterTop"),
            ["go to sidetable 1", "take mug 1 from sidetable 1", "go to countertop 1", "move mug 1 to countertop 1"],
        ),
        (("look_at_obj_in_light", "Mug"), ["go to sidetable 1", "take mug 1 from sidetable 1", "use desklamp 1"]),
        (
            ("pick_cool_then_place_in_recep", "Apple", "Fridge"),  # without leaving the fridge
            [
                "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "cool apple 1 with fridge 1",
                "move apple 1 to fridge 1",
            ],
        ),
        (
            ("pick_heat_then_place_in_recep", "Apple", "SinkBasin"),
            [
                "go to countertop 1", "take apple 2 from countertop 1", "go to microwave 1",
                "heat apple 2 with microwave 1", "go to sinkbasin 1", "move apple 2 to sinkbasin 1",
            ],
        ),
        (
            ("pick_two_obj_and_place", "Apple", "Fridge"),  # one lies there already
            [
                "go to countertop 1", "take apple 2 from countertop 1", "go to fridge 1", "open fridge 1",
                "move apple 2 to fridge 1",
            ],
        ),
    ],
)  # fmt: skip
def test_shortest(kitchen, task, expected):
    assert walkthrough(Game.parse(kitchen(*task))) == expected


def test_no_way(kitchen):
    with pytest.raises(ValueError, match="no way to"):
        walkthrough(Game.parse(kitchen("pick_two_obj_and_place", "Mug", "SideTable")))


def test_put_command():
    assert put_command("put", "mug 1", "bed 1") == "put mug 1 in/on bed 1"
    assert put_command("move", "mug 1", "bed 1") == "move mug 1 to bed 1"
