"""Making games from the command line."""

import pytest

from rl import downloads
from tools import make_tasks


@pytest.fixture(scope="module")
def source():
    try:
        return str(downloads.package_wheel("alfworld", "0.4.2"))
    except RuntimeError as error:
        pytest.skip(f"no alfworld package to make games from: {error}")


def test_makes_what_is_asked(source, tmp_path, capsys):
    flags = [f"--out={tmp_path}", f"--source={source}", "--train=4", "--valid_unseen=2", "--form=put"]
    flags += ["--task_types=pick_and_place_simple", "--room_types=bathroom,bedroom", "--max_receptacles=10"]
    assert make_tasks.main(flags) == 0
    assert "6 games (train 4, valid_seen 0, valid_unseen 2)" in capsys.readouterr().out
    assert len(list(tmp_path.rglob("train/*/*/game.tw-pddl"))) == 4
    assert len(list(tmp_path.rglob("valid_unseen/*/*/game.tw-pddl"))) == 2
    assert make_tasks.main(flags) == 2  # they are there already
    assert "holds games already" in capsys.readouterr().err


def test_nothing_to_make(tmp_path, capsys):
    assert make_tasks.main([f"--out={tmp_path}"]) == 2
    assert "--train" in capsys.readouterr().err
