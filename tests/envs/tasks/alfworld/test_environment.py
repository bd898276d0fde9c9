"""ALFWorld turns as a policy gets them, on a game of the release: literal texts, rewards, stops, demonstrations."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envs.pool import EnvPool
from envs.protocol import Observation
from envs.tasks.alfworld import splits
from envs.tasks.alfworld.environment import AlfworldEnvironment

TASK = "train/pick_and_place_simple-Book-None-Sofa-202/trial_T20190907_043652_096323"
ROOM = (
    "You are in the middle of a room. Looking quickly around you, you see a armchair 1, a coffeetable 1, "
    "a garbagecan 1, a sidetable 1, a sofa 1, and a tvstand 1."
)
AROUND = (
    "go to armchair 1, go to coffeetable 1, go to garbagecan 1, go to sidetable 1, go to sofa 1, go to tvstand 1, "
    "inventory, look"
)
WIN = ["go to sidetable 1", "take book 1 from sidetable 1", "go to sofa 1", "put book 1 in/on sofa 1"]
GOAL = "put some book on sofa"


@pytest.fixture(scope="module")
def games(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with TASK and the first game of each task type."""
    archive = data_dir / "alfworld" / "json_2.1.1.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no ALFWorld games at {archive}; set AGENTROPY_DATA")
    out = tmp_path_factory.mktemp("alfworld")
    missing = set(splits.TASK_TYPES)
    with tarfile.open(archive, "r|xz") as tar:
        trial = ""  # being extracted
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            kind = folder.split("/")[-2].split("-")[0] if folder.count("/") == 3 else ""
            if name and (folder == trial or folder.endswith(TASK) or kind in missing):
                missing.discard(kind)
                trial = folder
                tar.extract(member, out, filter="data")
            elif not missing:
                break
    return out


def config(games: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data_dir": str(games),
        "engine": "fast",
        "context": "conversation",
        "template": "alfworld_compact.txt",
        "history": 2,
        "parser": "plain",
        "validity": "format",
        "step_limit": 6,
        "success_reward": 10.0,
        "invalid_penalty": -0.1,
        "task_types": [],
        "masked": "both",
        "brief": False,
        "demo": {"noise": 0.0, "noise_weight": 0.0, "order": "listed"},
    } | changes


def test_tasks(games: Path) -> None:
    ids = AlfworldEnvironment.tasks(config(games), "train")
    assert ids == sorted(ids)
    assert TASK in ids
    assert {task.split("/")[1].split("-")[0] for task in ids} == set(splits.TASK_TYPES)
    assert AlfworldEnvironment.tasks(config(games / "json_2.1.1"), "train") == ids
    some = AlfworldEnvironment.tasks(config(games, task_types=["place", "pick_two_obj_and_place"]), "train")
    assert some == [task for task in ids if task.split("/")[1].startswith(("pick_and_place", "pick_two"))]


def test_tasks_that_the_release_skips(tmp_path: Path) -> None:
    root = tmp_path / "movable Sliced" / "json_2.1.1"  # words in the data directory's own path do not count
    for name, game in {
        "pick_two_obj_and_place-Mug-None-Desk-1/trial_b": {"solvable": True},
        "pick_two_obj_and_place-Mug-None-Desk-1/trial_a": {"solvable": True},
        "pick_two_obj_and_place-Mug-None-Desk-1/trial_c": {"solvable": False},
        "pick_two_obj_and_place-Mug-None-Desk-1/trial_d": {"grammar": 'a "solvable": true b'},
        "pick_two_obj_and_place-AppleSliced-None-Desk-1/trial_a": {"solvable": True},
        "pick_and_place_with_movable_recep-Mug-Bowl-Desk-1/trial_a": {"solvable": True},
        "made_up-1/trial_a": {"solvable": True},
        "made_up-2/trial_a": {"solvable": True},
    }.items():
        folder = root / "train" / name
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(json.dumps(game))
    (root / "train/made_up-2/trial_a/traj_data.json").write_text(
        '{"task_type": "pick_heat_then_place_in_recep"}'
    )
    assert splits.list_games(str(root.parent), "train", ()) == [
        "train/made_up-2/trial_a",
        "train/pick_two_obj_and_place-Mug-None-Desk-1/trial_a",
        "train/pick_two_obj_and_place-Mug-None-Desk-1/trial_b",
    ]
    with pytest.raises(ValueError, match="there are: train"):
        splits.list_games(str(root), "valid_seen", ())


@pytest.mark.parametrize("task", ["", "train", "../x", "/etc", "train/../../x", "train/none/trial_0"])
def test_a_task_outside_the_data_is_refused(games: Path, task: str) -> None:
    with pytest.raises(ValueError, match="no game"):
        AlfworldEnvironment(config(games)).reset(task, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1}, "unknown.*colour"),
        ({"demo": {"noise": 0.1}}, "missing.*noise_weight"),
        ({"demo": {"noise": 1.0, "noise_weight": 0.0, "order": "listed"}}, "noise"),
        ({"demo": {"noise": 0.1, "noise_weight": 0.0, "order": "up"}}, "order"),
        ({"engine": "real"}, "engine='real'"),
        ({"context": "chat"}, "context='chat'"),
        ({"parser": "json"}, "parser='json'"),
        ({"validity": "none"}, "validity='none'"),
        ({"template": "none.txt"}, "no template 'none.txt'"),
        ({"task_types": ["cook"]}, "unknown task_types"),
        ({"invalid_penalty": 0.1}, "invalid_penalty"),
        ({"step_limit": 0}, "step_limit"),
        ({"data_dir": "/no/such/place"}, "config.env.data_dir"),
        ({"data_dir": ""}, "config.env.data_dir"),
    ],
)
def test_a_bad_config_names_its_key(games: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlfworldEnvironment(config(games, **changes))


def test_conversation_turns(games: Path) -> None:
    seat = AlfworldEnvironment(config(games))
    first = seat.reset(TASK, 0)
    assert first == Observation(
        system="",
        prompts=(f"{ROOM}\ngoal: {GOAL}",),
        blind=ROOM,
        anchor=f"{ROOM}\n{AROUND}",
        info={
            "goal": GOAL,
            "observation": ROOM,
            "admissible": AROUND.split(", "),
            "task_type": "pick_and_place_simple",
            "step": 1,
        },
    )
    result = seat.step("go to sidetable 1")
    assert result.observation is not None
    seen = "You arrive at loc 12. On the sidetable 1, you see a book 1, a box 1, and a creditcard 1."
    assert result.observation.prompts == (f"{seen}\ngoal: {GOAL}",)
    assert result.observation.blind == seen
    assert result.observation.info["step"] == 2
    assert (result.reward, result.penalty, result.valid, result.stop) == (0.0, 0.0, True, "")


def test_step_prompts_keep_the_goal_and_drop_history(games: Path) -> None:
    seat = AlfworldEnvironment(config(games, context="step"))
    assert seat.reset(TASK, 0).prompts == (f"{ROOM}\ngoal: {GOAL}",)
    for action in ("go to sidetable 1", "nonsense", "take book 1 from sidetable 1"):
        result = seat.step(action)
    assert result.observation is not None
    taken = "You pick up the book 1 from the sidetable 1."
    assert result.observation.prompts == (
        # The first turn is beyond the window of two.
        "You arrive at loc 12. On the sidetable 1, you see a book 1, a box 1, and a creditcard 1.\n> nonsense\n"
        f"Nothing happens.\n> take book 1 from sidetable 1\n{taken}\ngoal: {GOAL}",
        f"Nothing happens.\n> take book 1 from sidetable 1\n{taken}\ngoal: {GOAL}",
        f"{taken}\ngoal: {GOAL}",
    )


def test_no_window_is_no_history(games: Path) -> None:
    seat = AlfworldEnvironment(config(games, context="step", history=0))
    seat.reset(TASK, 0)
    seat.step("look")
    result = seat.step("look")
    assert result.observation is not None
    assert len(result.observation.prompts) == 1


@pytest.mark.parametrize(
    "template", ["alfworld_compact.txt", "alfworld_compact_admissible.txt", "alfworld_react.txt"]
)
@pytest.mark.parametrize("context", ["step", "conversation"])
def test_goal_is_in_every_prompt_and_in_no_blind_text_or_anchor(
    games: Path, template: str, context: str
) -> None:
    settings = config(games, template=template, context=context, step_limit=40)
    seat = AlfworldEnvironment(settings)
    for task in AlfworldEnvironment.tasks(settings, "train"):
        for turn in seat.demonstrate(task, 0).turns:
            seen = turn.observation
            goal = seen.info["goal"]
            if context == "step" or "compact" in template or seen.info["step"] == 1:
                assert all(goal in text for text in seen.prompts)
            for text in (seen.blind, seen.anchor, seen.info["observation"]):
                assert goal not in text
                assert "task" not in text.lower()
                assert "Welcome" not in text
            assert seen.info["observation"] in seen.blind
            assert len(seen.prompts) == 1 or context == "step"


def test_win(games: Path) -> None:
    seat = AlfworldEnvironment(config(games))
    seat.reset(TASK, 0)
    results = [seat.step(action) for action in WIN]
    assert [result.done for result in results] == [False, False, False, True]
    last = results[-1]
    assert (last.success, last.reward, last.stop, last.observation) == (True, 10.0, "success", None)
    with pytest.raises(RuntimeError, match="before reset"):
        seat.step("look")


def test_the_step_limit_is_not_a_success(games: Path) -> None:
    seat = AlfworldEnvironment(config(games, step_limit=3))
    seat.reset(TASK, 0)
    results = [seat.step(action) for action in WIN[:3]]
    assert [result.stop for result in results] == ["", "", "step_limit"]
    assert (results[-1].done, results[-1].success, results[-1].reward) == (True, False, 0.0)


def test_a_win_with_the_last_step_is_a_success(games: Path) -> None:
    seat = AlfworldEnvironment(config(games, step_limit=4))
    seat.reset(TASK, 0)
    assert [seat.step(action) for action in WIN][-1].stop == "success"


@pytest.mark.parametrize(
    ("parser", "validity", "response", "action", "valid"),
    [
        ("plain", "format", "dance", "dance", True),
        ("plain", "admissible", "dance", "dance", False),
        ("plain", "admissible", "look", "look", True),
        ("tags", "format", "<think>a</think><action>dance</action>", "dance", True),
        ("tags", "admissible", "<think>a</think><action>dance</action>", "dance", False),
        ("tags", "format", "<action>look</action>", "look", False),
        ("tags", "format", "look", "look", False),
    ],
)
def test_invalid_responses_cost_their_step_and_are_still_played(
    games: Path, parser: str, validity: str, response: str, action: str, valid: bool
) -> None:
    seat = AlfworldEnvironment(config(games, parser=parser, validity=validity))
    seat.reset(TASK, 0)
    result = seat.step(response)
    assert (result.action, result.valid, result.penalty, result.reward) == (
        action,
        valid,
        0.0 if valid else -0.1,
        0.0,
    )
    assert result.observation is not None
    nothing = result.observation.info["observation"] == "Nothing happens."
    assert nothing == (action == "dance")


@pytest.mark.parametrize("parser", ["plain", "tags"])
def test_a_demonstration_replays(games: Path, parser: str) -> None:
    demo = {"noise": 0.3, "noise_weight": 0.25, "order": "random"}
    settings = config(games, parser=parser, demo=demo, step_limit=40)
    seat = AlfworldEnvironment(settings)
    weights = []
    for seed, task in enumerate([*AlfworldEnvironment.tasks(settings, "train")[:4], TASK]):
        shown = seat.demonstrate(task, seed)
        assert shown == seat.demonstrate(task, seed)
        assert shown != seat.demonstrate(task, seed + 100)
        observation: Observation | None = seat.reset(task, seed)
        for turn in shown.turns:
            assert turn.observation == observation
            result = seat.step(turn.response)
            assert result.valid
            observation = result.observation
            assert turn.weight == 0.25 or result.action in turn.observation.info["admissible"]
            weights.append(turn.weight)
        assert observation is None
        assert result.success == shown.success
    assert set(weights) == {0.25, 1.0}
    assert 0.15 < weights.count(0.25) / len(weights) < 0.45


def test_the_expert_wins_without_noise(games: Path) -> None:
    seat = AlfworldEnvironment(config(games, step_limit=100))
    for task in AlfworldEnvironment.tasks(config(games), "train"):
        shown = seat.demonstrate(task, 0)
        assert shown.success, task
        assert {turn.weight for turn in shown.turns} == {1.0}


def test_through_the_pool(games: Path) -> None:
    with EnvPool(
        name="alfworld", config=config(games), workers=1, slots=8, deadline_s=30.0, restarts=0
    ) as pool:
        assert TASK in pool.tasks("train")
        for slot in range(8):
            pool.reset(slot, TASK, slot)
        played, won = dict.fromkeys(range(8), 0), set()
        while len(won) < 8:
            for event in pool.poll(10.0):
                assert event.kind in ("reset", "step"), event.error
                if event.result is not None and event.result.done:
                    assert event.result.success
                    won.add(event.slot)
                else:
                    pool.step(event.slot, WIN[played[event.slot]])
                    played[event.slot] += 1
    assert set(played.values()) == {4}
