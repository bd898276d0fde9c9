"""Literal transcripts of the fast engine and the traps of the real stack, in a kitchen built by hand.

Every text here was given by the real stack for the same commands; `test_textworld.py` compares them anew.
"""

import re

import pytest

from envs.tasks.alfworld.engine import FastEngine, Game

INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\n"
    "You are in the middle of a room. Looking quickly around you, you see a countertop 1, a drawer 2, a drawer 1, "
    "a fridge 1, a microwave 1, a sidetable 1, and a sinkbasin 1.\n\n"
    "Your task is to: put a clean apple in sidetable."
)
CLEAN = ("pick_clean_then_place_in_recep", "Apple", "SideTable")
PLACE = ("pick_and_place_simple", "Mug", "CounterTop")
LOOK = ("look_at_obj_in_light", "Mug")
TWO = ("pick_two_obj_and_place", "Apple", "SideTable")
MOVE = [
    ("look", "You are in the middle of a room. Looking quickly around you, you see nothing."),
    ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
    ("take apple 1 from fridge 1", "Nothing happens."),
    ("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."),
    ("take apple 1 from fridge 1", "You pick up the apple 1 from the fridge 1."),
    ("look", "You are facing the fridge 1. Next to it, you see nothing."),
    ("inventory", "You are carrying: a apple 1."),
    ("examine apple 1", "There's nothing special about apple 1."),
    ("cool apple 1 with fridge 1", "You cool the apple 1 using the fridge 1."),
    ("examine apple 1", "This is a cold apple 1."),
    ("close fridge 1", "You close the fridge 1."),
    ("go to microwave 1", "You arrive at microwave 1. The microwave 1 is closed."),
    ("heat apple 1 with microwave 1", "You heat the apple 1 using the microwave 1."),
    ("go to sinkbasin 1", "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing."),
    ("clean apple 1 with sinkbasin 1", "You clean the apple 1 using the sinkbasin 1."),
    ("examine apple 1", "This is a hot and clean apple 1."),
    (
        "go to sidetable 1",
        "You arrive at sidetable 1. On the sidetable 1, you see a desklamp 1, and a mug 1.",
    ),
    ("move apple 1 to sidetable 1", "You move the apple 1 to the sidetable 1."),
]
PUT = {
    "go to fridge 1": "You arrive at loc 2. The fridge 1 is closed.",
    "go to microwave 1": "You arrive at loc 6. The microwave 1 is closed.",
    "go to sinkbasin 1": "You arrive at loc 4. On the sinkbasin 1, you see nothing.",
    "go to sidetable 1": "You arrive at loc 5. On the sidetable 1, you see a desklamp 1, and a mug 1.",
    "put apple 1 in/on sidetable 1": "You put the apple 1 in/on the sidetable 1.",
}


def play(engine, *commands):
    """The last observation of some commands."""
    return [engine.step(command) for command in commands][-1].observation


@pytest.mark.parametrize("form", ["move", "put"])
def test_transcript(kitchen, form):
    engine = FastEngine(Game.parse(kitchen(*CLEAN, form=form, goal="put a clean apple in sidetable")))
    state = engine.reset()
    assert state.observation == INTRO
    assert not state.won
    for command, expected in MOVE:
        if form == "put":
            command = re.sub("^move (.*) to ", r"put \1 in/on ", command)
            expected = PUT.get(command, expected)
        state = engine.step(command)
        assert state.observation == expected
    assert state.won


def test_admissible(kitchen):
    engine = FastEngine(Game.parse(kitchen(*CLEAN)))
    around = [
        "go to drawer 1",
        "go to fridge 1",
        "go to microwave 1",
        "go to sidetable 1",
        "go to sinkbasin 1",
    ]
    assert engine.reset().admissible == [
        "go to countertop 1", "go to drawer 1", "go to drawer 2", *around[1:], "help", "inventory", "look"
    ]  # fmt: skip
    state = engine.step("go to countertop 1")
    assert state.admissible == [
        "examine countertop 1", "examine drawer 2", *around, "help", "inventory", "look", "open drawer 2",
        "take apple 2 from countertop 1", "take pan 1 from countertop 1",
    ]  # fmt: skip
    state = engine.step("take apple 2 from countertop 1")
    assert state.admissible == [
        "examine apple 2", "examine countertop 1", "examine drawer 2", *around, "help", "inventory", "look",
        "move apple 2 to countertop 1", "open drawer 2",
    ]  # fmt: skip


def test_help_belongs_to_the_move_form(kitchen):
    assert (
        FastEngine(Game.parse(kitchen(*CLEAN)))
        .step("help")
        .observation.startswith(
            "Available commands:\n  look:                             look around your current location\n"
        )
    )
    engine = FastEngine(Game.parse(kitchen(*CLEAN, form="put")))
    assert "help" not in engine.reset().admissible
    assert engine.step("help").observation == "Nothing happens."


def test_trap_1_only_the_object_in_hand_is_examined(kitchen):
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    assert play(engine, "go to sidetable 1", "examine mug 1") == "Nothing happens."
    assert play(engine, "take mug 1 from sidetable 1", "examine mug 1") == (
        "This is a normal mug 1. In it, you see nothing."
    )


def test_trap_2_only_the_introduction_lists_the_room(kitchen):
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    assert engine.step("look").observation.endswith("Looking quickly around you, you see nothing.")


def test_trap_3_numbers_run_down_along_lists(kitchen):
    assert "a drawer 2, a drawer 1," in FastEngine(Game.parse(kitchen(*PLACE))).reset().observation


def test_trap_4_one_cannot_go_to_where_one_stands(kitchen):
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    assert play(engine, "go to drawer 2", "go to drawer 2") == "Nothing happens."
    assert play(engine, "go to countertop 1") == "Nothing happens."
    assert play(engine, "examine countertop 1") == "On the countertop 1, you see a apple 2, and a pan 1."
    assert (
        play(engine, "look") == "You are facing the countertop 1, and drawer 2. Next to it, you see nothing."
    )


def test_trap_5_commands_match_exactly(kitchen):
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    assert play(engine, "  go to fridge 1\n") == "You arrive at fridge 1. The fridge 1 is closed."
    for command in ("Look", "look around", "go to  microwave 1", "", "open  fridge 1"):
        state = engine.step(command)
        assert state.observation == "Nothing happens."
        assert not state.won
        assert "open fridge 1" in state.admissible


def test_trap_5_lamps_are_used_behind_doors_and_tools_need_none(kitchen):
    drawer = "Drawer_bar__plus_01_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_10"
    lamp = "DeskLamp_bar__plus_04_dot_00_bar__plus_00_dot_90_bar__plus_00_dot_00"
    engine = FastEngine(Game.parse(kitchen(*LOOK, extra=(f"inReceptacle {lamp} {drawer}",))))
    state = engine.step("go to drawer 1")
    assert state.observation.endswith("The drawer 1 is closed.")
    assert "use desklamp 1" in state.admissible
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    state = [engine.step(c) for c in ("go to sidetable 1", "take mug 1 from sidetable 1", "go to fridge 1")][
        -1
    ]
    assert "cool mug 1 with fridge 1" in state.admissible
    assert "move mug 1 to fridge 1" not in state.admissible


def test_trap_6_forms_are_not_mixed(kitchen):
    for form, other in (("move", "put mug 1 in/on countertop 1"), ("put", "move mug 1 to countertop 1")):
        engine = FastEngine(Game.parse(kitchen(*PLACE, form=form)))
        play(engine, "go to sidetable 1", "take mug 1 from sidetable 1", "go to countertop 1")
        assert engine.step(other).observation == "Nothing happens."


def test_trap_7_won_is_the_state_and_play_goes_on(kitchen):
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    play(engine, "go to sidetable 1", "take mug 1 from sidetable 1", "go to countertop 1")
    assert engine.step("move mug 1 to countertop 1").won
    assert engine.step("look").won
    assert not engine.step("take mug 1 from countertop 1").won
    assert not engine.reset().won


def test_lamp_and_object_come_in_either_order(kitchen):
    engine = FastEngine(Game.parse(kitchen(*LOOK)))
    play(engine, "go to sidetable 1")
    assert not engine.step("use desklamp 1").won
    assert engine.step("take mug 1 from sidetable 1").won
    assert engine.step("use desklamp 1").observation == "You turn on the desklamp 1."  # it never turns off
    assert not engine.step("go to fridge 1").won


def test_two_must_lie_in_one_receptacle(kitchen):
    engine = FastEngine(Game.parse(kitchen(*TWO)))
    play(engine, "go to countertop 1", "take apple 2 from countertop 1", "go to sidetable 1")
    assert not engine.step("move apple 2 to sidetable 1").won
    play(engine, "go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to sidetable 1")
    assert engine.step("move apple 1 to sidetable 1").won


def test_slicing_reaches_through_closed_doors(kitchen):
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    play(engine, "go to drawer 1", "open drawer 1", "take butterknife 1 from drawer 1", "go to fridge 1")
    assert (
        play(engine, "slice apple 1 with butterknife 1") == "You sliced the apple 1 with the butterknife 1."
    )


def test_what_was_taken_from_a_neighbour_lies_next_to_it(kitchen):
    """The real stack lists what lies in one receptacle of a place and was taken out of another one there."""
    engine = FastEngine(Game.parse(kitchen(*PLACE)))
    play(engine, "go to drawer 1", "open drawer 1", "take butterknife 1 from drawer 1", "go to countertop 1")
    play(
        engine, "move butterknife 1 to countertop 1", "take butterknife 1 from countertop 1", "open drawer 2"
    )
    play(engine, "move butterknife 1 to drawer 2")
    facing = "You are facing the countertop 1, and drawer 2. Next to it, you see "
    assert play(engine, "look") == facing + "a butterknife 1."
    play(engine, "take butterknife 1 from drawer 2", "move butterknife 1 to countertop 1")
    assert play(engine, "look") == facing + "a butterknife 1."


def test_an_object_in_two_receptacles(kitchen):
    """Released games have such objects: taking it out of one leaves it in the other."""
    drawer = "Drawer_bar__plus_01_dot_00_bar__plus_00_dot_50_bar__plus_00_dot_10"
    mug = "Mug_bar__plus_04_dot_10_bar__plus_00_dot_90_bar__plus_00_dot_00"
    apple = "Apple_bar__plus_00_dot_01_bar__plus_00_dot_95_bar__plus_00_dot_02"
    extra = (f"inReceptacle {mug} {drawer}", f"inReceptacleObject {apple} {mug}")
    engine = FastEngine(Game.parse(kitchen(*LOOK, extra=extra)))
    play(engine, "go to sidetable 1", "take mug 1 from sidetable 1")
    assert play(engine, "examine mug 1") == "This is a normal mug 1. In it, you see a apple 2."
    assert play(engine, "go to drawer 1", "open drawer 1").endswith("you see a butterknife 1, and a mug 1.")
    assert play(engine, "take mug 1 from drawer 1") == "Nothing happens."
    assert play(engine, "inventory") == "You are carrying: a mug 1."
