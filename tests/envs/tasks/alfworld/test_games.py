"""Laws of made games: layout, splits, distinctness, determinism, options, solvability."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envs.tasks.alfworld.engine import FastEngine, Game
from envs.tasks.alfworld.games import SPLITS, UNSEEN_SCENES, make_games
from envs.tasks.alfworld.pddl import TASK_TYPES, facts

COUNTS: dict[str, Any] = dict(train=48, valid_seen=12, valid_unseen=12)


@pytest.fixture(scope="module")
def out(alfworld_source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("games")
    return folder, make_games(alfworld_source, folder, **COUNTS, seed=5)


def texts(trials):
    return [(Path(trial) / "game.tw-pddl").read_text() for trial in trials]


def described(trial):
    """What a game is to one who plays it: its room, its goal, and which type lies where."""
    data = json.loads((Path(trial) / "game.tw-pddl").read_text())
    found, goal = facts(data["pddl_problem"])
    kinds = {row[0]: row[1] for row in found["objecttype"]}
    scene = Path(trial).parent.name.rsplit("-", 1)[1]
    return scene, goal, tuple(sorted((kinds[o], r) for o, r, *_ in found["inreceptacle"]))


def test_layout(out):
    folder, made = out
    assert tuple(made) == SPLITS
    for split, trials in made.items():
        assert len(trials) == COUNTS[split]
        for trial in map(Path, trials):
            assert {file.name for file in trial.iterdir()} == {
                "traj_data.json",
                "initial_state.pddl",
                "game.tw-pddl",
            }
            assert trial.parent.parent == folder / "json_2.1.1" / split
            kind, thing, movable, place, scene = trial.parent.name.split("-")
            traj = json.loads((trial / "traj_data.json").read_text())
            look = kind == "look_at_obj_in_light"
            assert traj["task_type"] == kind
            assert traj["task_id"] == trial.name
            assert traj["pddl_params"] == {
                "mrecep_target": "",
                "object_sliced": False,
                "object_target": thing,
                "parent_target": "" if look else place,
                "toggle_target": place if look else "",
            }
            assert movable == "None"
            assert traj["scene"]["scene_num"] == int(scene)
            game = json.loads((trial / "game.tw-pddl").read_text())
            assert game["solvable"] is True
            assert game["pddl_problem"] == (trial / "initial_state.pddl").read_text()
    assert {path.name for path in (folder / "json_2.1.1").iterdir()} == set(SPLITS)


def test_walkthroughs_win(out):
    for trials in out[1].values():
        for trial in trials:
            path = Path(trial) / "game.tw-pddl"
            engine = FastEngine(Game.load(path))
            assert not engine.reset().won
            walk = json.loads(path.read_text())["walkthrough"]
            assert [engine.step(command).won for command in walk] == [False] * (len(walk) - 1) + [True]


def test_task_types_in_equal_shares(out):
    for split, trials in out[1].items():
        kinds = Counter(Path(trial).parent.name.split("-")[0] for trial in trials)
        assert kinds == dict.fromkeys(TASK_TYPES, COUNTS[split] // 6)


def test_splits_are_disjoint(out):
    scenes = {
        split: {int(Path(trial).parent.name.rsplit("-", 1)[1]) for trial in trials}
        for split, trials in out[1].items()
    }
    assert scenes["valid_unseen"] <= set(UNSEEN_SCENES)
    assert not (scenes["train"] | scenes["valid_seen"]) & set(UNSEEN_SCENES)


def test_games_are_distinct_in_a_crowded_room(alfworld_source, tmp_path):
    """One small room, many games: repeats would be drawn often if they were not refused."""
    made = make_games(
        alfworld_source, tmp_path, train=60, valid_seen=20, valid_unseen=0, scenes=[420], clutter=0.0, seed=1
    )
    games = [described(trial) for trials in made.values() for trial in trials]
    assert len(set(games)) == len(games) == 80


def test_deterministic_and_train_only_appends(alfworld_source, out, tmp_path):
    again = make_games(alfworld_source, tmp_path, train=54, valid_seen=12, valid_unseen=12, seed=5)
    assert texts(again["train"][:48]) == texts(out[1]["train"])
    assert texts(again["valid_seen"]) == texts(out[1]["valid_seen"])
    other = make_games(alfworld_source, tmp_path / "other", train=12, valid_seen=0, valid_unseen=0, seed=6)
    assert texts(other["train"]) != texts(out[1]["train"][:12])


def test_options(alfworld_source, tmp_path):
    steps = []
    made = make_games(
        alfworld_source, tmp_path, train=12, valid_seen=4, valid_unseen=4, form="put", max_receptacles=10,
        task_types=["pick_and_place_simple", "look_at_obj_in_light"], room_types=["bedroom", "bathroom"],
        progress=lambda *args: steps.append(args),
    )  # fmt: skip
    for split, trials in made.items():
        for trial in trials:
            game = Game.load(Path(trial) / "game.tw-pddl")
            assert game.form == "put"
            assert game.task.kind in ("pick_and_place_simple", "look_at_obj_in_light")
            assert split == "valid_unseen" or len(game.receptacles) <= 10
            assert int(Path(trial).parent.name.rsplit("-", 1)[1]) // 100 in (3, 4)
    assert len(steps) == 20
    assert steps[-1] == ("train", 12, 12)


def test_errors(alfworld_source, tmp_path):
    counts: dict[str, Any] = dict(train=1, valid_seen=0, valid_unseen=0)
    with pytest.raises(ValueError, match="unknown task type 'fly'"):
        make_games(alfworld_source, tmp_path, **counts, task_types=["fly"])
    with pytest.raises(ValueError, match="unknown room type 'attic'"):
        make_games(alfworld_source, tmp_path, **counts, room_types=["attic"])
    with pytest.raises(ValueError, match="clutter=2"):
        make_games(alfworld_source, tmp_path, **counts, clutter=2)
    with pytest.raises(ValueError, match="no room can host split='train'"):
        make_games(
            alfworld_source, tmp_path, **counts, room_types=["bathroom"], task_types=["look_at_obj_in_light"]
        )
    with pytest.raises(ValueError, match="no more than"):
        make_games(
            alfworld_source, tmp_path, train=5000, valid_seen=0, valid_unseen=0, scenes=[420], clutter=0.0,
            task_types=["pick_clean_then_place_in_recep"],
        )  # fmt: skip
    assert not list(tmp_path.iterdir())
    make_games(alfworld_source, tmp_path, **counts)
    with pytest.raises(ValueError, match="holds games already"):
        make_games(alfworld_source, tmp_path, **counts)
