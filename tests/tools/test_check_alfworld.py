"""The lock-step check itself: it must see differences. The real stack is played by a fast engine, true or false."""

import re
from pathlib import Path

import pytest

from envs.tasks.alfworld.engine import FastEngine, Game
from envs.tasks.alfworld.games import make_games
from rl import downloads
from tools import check_alfworld


class Twin:
    """The interface of the real stack over the fast engine; `lie` may change a state and the reward."""

    lie = staticmethod(lambda state, reward, command: (state, reward))

    def __init__(self, data):
        self._engine = FastEngine(Game.parse(data))
        self.reward = 0.0

    def reset(self):
        self.reward = 0.0
        return self._engine.reset()

    def step(self, command):
        state = self._engine.step(command)
        state, self.reward = self.lie(state, float(state.won), command)
        return state


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    try:
        source = str(downloads.package_wheel("alfworld", "0.4.2"))
    except RuntimeError as error:
        pytest.skip(f"no alfworld package to make games from: {error}")
    out = tmp_path_factory.mktemp("games")
    make_games(source, out, train=12, valid_seen=0, valid_unseen=6, seed=2)
    return out, source


def job(games, *, other=False, steps=60):
    path = next(iter(sorted(games[0].rglob("game.tw-pddl"))))
    return check_alfworld.Job(str(path), games[1] if other else "", steps, 0)


@pytest.mark.parametrize("other", [False, True])
def test_equal_engines(games, monkeypatch, other):
    monkeypatch.setattr(check_alfworld, "TextWorldEngine", Twin)
    report = check_alfworld.compare(job(games, other=other))
    assert report.difference == ""
    assert report.steps >= 60
    assert report.wins >= 1
    assert report.invalid >= 1
    assert report.form == ("put" if other else "move")


@pytest.mark.parametrize(
    ("what", "lie"),
    [
        ("observation", lambda state, reward, command: (state._replace(observation="Nothing."), reward)),
        (
            "admissible",
            lambda state, reward, command: (state._replace(admissible=state.admissible[1:]), reward),
        ),
        (
            "admissible",
            lambda state, reward, command: (state._replace(admissible=state.admissible[::-1]), reward),
        ),
        ("won", lambda state, reward, command: (state._replace(won=not state.won), reward)),
        ("reward", lambda state, reward, command: (state, reward + 1)),
    ],
)
def test_differences_are_seen(games, monkeypatch, what, lie):
    class Liar(Twin):
        pass

    Liar.lie = staticmethod(lie)
    monkeypatch.setattr(check_alfworld, "TextWorldEngine", Liar)
    report = check_alfworld.compare(job(games))
    assert f"{what} " in report.difference
    assert "differs" in report.difference
    assert report.steps == 1
    assert "fast engine:" in report.difference
    assert "real stack:" in report.difference


def test_games_are_found_in_equal_shares(games):
    paths = check_alfworld.find_games([str(games[0])], 6, seed=0)
    assert len({Path(path).parent.parent.name.split("-")[0] for path in paths}) == 6
    assert check_alfworld.find_games([str(games[0])], 6, seed=0) == paths
    assert len(check_alfworld.find_games([str(games[0])], 0, seed=0)) == 18


def test_engine_speed(games, capsys):
    assert check_alfworld.main([f"--data={games[0]}", "--engine_speed", "--seconds=0.2"]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(
        r"fast engine: [\d,]+ steps/s \([\d,]+ a CPU second\) over 18 games, one process\n", said
    )


def test_no_games(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        check_alfworld.main([f"--data={tmp_path}"])
    assert stop.value.code == 2
    assert "no game.tw-pddl below" in capsys.readouterr().err
