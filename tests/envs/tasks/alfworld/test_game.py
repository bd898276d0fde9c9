"""Reading games: names, fields, and games that the fast engine refuses."""

import json

import pytest

from envs.tasks.alfworld.game import Game, entity_names
from envs.tasks.alfworld.pddl import Task


def test_names_count_down_along_sorted_ids():
    ids = [
        "cabinet_bar_b",
        "cabinet_bar_a",
        "sink_bar__minus_1_bar_sinkbasin",
        "agent1",
        "loc_bar_3",
        "cabinet_bar_c",
    ]
    assert entity_names(ids) == {
        "cabinet_bar_a": "cabinet 3",
        "cabinet_bar_b": "cabinet 2",
        "cabinet_bar_c": "cabinet 1",
        "sink_bar__minus_1_bar_sinkbasin": "sinkbasin 1",
        "agent1": "agent1 ",
        "loc_bar_3": "loc 1",
    }


def test_fields(kitchen, tmp_path):
    path = tmp_path / "game.tw-pddl"
    path.write_text(
        json.dumps(kitchen("look_at_obj_in_light", "Mug", goal="look at mug under the desklamp", form="put"))
    )
    game = Game.load(path)
    assert game.path == str(path)
    assert game.goal == "look at mug under the desklamp"
    assert game.goal_sentence == "Your task is to: look at mug under the desklamp."
    assert game.form == "put"
    assert game.task == Task("look_at_obj_in_light", "mug", "", "desklamp")
    assert game.objects == ("apple 2", "apple 1", "butterknife 1", "desklamp 1", "mug 1", "pan 1")
    assert [game.receptacles[r] for r in sorted(game.openable)] == [
        "drawer 2",
        "drawer 1",
        "fridge 1",
        "microwave 1",
    ]
    assert game.inside[game.receptacles.index("countertop 1")] == (0, 5)
    assert game.sinks == {"sinkbasin"}
    assert not game.helps
    assert game.holds == -1


@pytest.mark.parametrize(
    ("key", "old", "new", "message"),
    [
        ("pddl_domain", "(not (holdsAny ?a))", "(holdsAny ?a)", "rules"),
        ("grammar", "move {o} to {r}", "shove {o} to {r}", "unknown text form"),
        ("grammar", "open {r}", "unlock {r}", "OpenObject"),
        ("grammar", "openable(r:receptacle) & opened", "opened", "examineReceptacle.feedback"),
        ("grammar", "Your task is to", "Do", "no 'Your task is to"),
        ("pddl_problem", "MugType)", "MugType) (isHot ?o)", "none of the six task types"),
    ],
)
def test_other_logic_is_refused(kitchen, tmp_path, key, old, new, message):
    data = kitchen("pick_and_place_simple", "Mug", "CounterTop")
    goal = data[key].rindex(old)
    data[key] = data[key][:goal] + data[key][goal:].replace(old, new)
    data[key] = data[key].replace(old, new) if key != "pddl_problem" else data[key]
    path = tmp_path / "game.tw-pddl"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message) as error:
        Game.load(path)
    assert str(path) in str(error.value)
