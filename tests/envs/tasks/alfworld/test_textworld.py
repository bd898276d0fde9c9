"""The real stack against the fast engine, where it is installed: here, or in $AGENTROPY_ORACLE_PYTHON."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envs.tasks.alfworld.games import make_games

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def interpreter():
    """A Python that has textworld."""
    if named := os.environ.get("AGENTROPY_ORACLE_PYTHON"):
        return named
    if importlib.util.find_spec("textworld") is None:
        pytest.skip("textworld is not installed: pip install 'agentropy[alfworld]', or name an interpreter that has it "
                    "in AGENTROPY_ORACLE_PYTHON")  # fmt: skip
    return sys.executable


@pytest.mark.slow
def test_lock_step(interpreter, alfworld_source, tmp_path):
    rooms = ["bathroom", "bedroom"]
    make_games(alfworld_source, tmp_path, train=6, valid_seen=0, valid_unseen=0, seed=4, room_types=rooms)
    run = subprocess.run(
        [interpreter, "-m", "tools.check_alfworld", f"--data={tmp_path}", "--games=4", "--steps=160", "--workers=1"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 differences in 4 games" in run.stdout


SCRIPT = """
import json, sys
from envs.tasks.alfworld.engine import FastEngine, Game
from envs.tasks.alfworld.textworld import TextWorldEngine
data, commands = json.load(sys.stdin)
fast, real = FastEngine(Game.parse(data)), TextWorldEngine(data)
assert fast.reset() == real.reset()
for command in commands:
    ours, theirs = fast.step(command), real.step(command)
    assert ours == theirs, (command, ours, theirs)
    assert real.reward == float(ours.won)
    print(ours.observation)
"""


@pytest.mark.slow
def test_neighbours_on_the_real_stack(interpreter, kitchen):
    """The corners that random play seldom reaches: things that lie next to a receptacle, slicing, and examining."""
    commands = [
        "go to drawer 1", "open drawer 1", "take butterknife 1 from drawer 1", "go to fridge 1",
        "slice apple 1 with butterknife 1", "go to countertop 1", "move butterknife 1 to countertop 1",
        "take butterknife 1 from countertop 1", "open drawer 2", "move butterknife 1 to drawer 2", "look",
        "take butterknife 1 from drawer 2", "move butterknife 1 to countertop 1", "look",
        "take apple 2 from countertop 1", "examine apple 2", "help", "Look",
    ]  # fmt: skip
    run = subprocess.run(
        [interpreter, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        input=json.dumps([kitchen("pick_and_place_simple", "Mug", "CounterTop"), commands]),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Next to it, you see a butterknife 1.") == 2
