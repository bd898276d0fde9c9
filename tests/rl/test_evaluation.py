"""Fixed lists of games, and success with its interval."""

from __future__ import annotations

import pytest

from rl import evaluation
from tests.rl.episodes import episode


def test_fixed_tasks_do_not_depend_on_order() -> None:
    tasks = [f"t{n:03d}" for n in range(100)]
    chosen = evaluation.fixed_tasks(tasks, 10)
    assert chosen == evaluation.fixed_tasks(tasks[::-1], 10) == sorted(set(chosen))
    assert len(chosen) == 10 and chosen != tasks[:10]
    assert evaluation.fixed_tasks(tasks, 0) == evaluation.fixed_tasks(tasks, 1000) == tasks


def test_summary() -> None:
    played = [episode(n, 0, [(1, 1)] * 2, reward=float(n < 3)) for n in range(4)]
    played.append(episode(4, 0, [], failed="worker died"))
    for n, t in enumerate(played):
        t.info = {"task_type": "look" if n < 2 else "place"}
    out = evaluation.summary(played, "valid_seen")
    assert out["eval/valid_seen_success"] == 0.75
    assert (out["eval/valid_seen_n"], out["eval/valid_seen_failed"]) == (4, 1)
    assert out["eval/valid_seen_success_look"] == 1.0 and out["eval/valid_seen_success_place"] == 0.5
    assert out["eval/valid_seen_turns_mean"] == 2.0
    # Wilson's interval for 3 of 4, by hand: centre 0.6275, half width 0.3270
    assert out["eval/valid_seen_success_low"] == pytest.approx(0.3006, abs=2e-4)
    assert out["eval/valid_seen_success_high"] == pytest.approx(0.9544, abs=2e-4)


def test_summary_of_nothing() -> None:
    out = evaluation.summary([episode(0, 0, [], failed="x")], "s")
    assert out["eval/s_n"] == 0 and out["eval/s_success"] != out["eval/s_success"]


def test_seeds_are_paired() -> None:
    seen = []

    class Recorder:
        def collect(self, params, draws, *, on_episode=None):
            seen.append([(d.task, d.seed) for d in draws])
            return []

    for _ in range(2):
        evaluation.evaluate(Recorder(), None, ["a", "b"], seed=3)
    evaluation.evaluate(Recorder(), None, ["a", "b"], seed=4)
    assert seen[0] == seen[1] != seen[2]
    assert len({seed for _, seed in seen[0]}) == 2
