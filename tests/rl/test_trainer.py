"""The loop around fake stages: task draws, rounds of dynamic sampling, the cursor, and what a starved run leaves."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from configs import common
from rl import builder, selection
from rl.learner import Updated
from rl.metrics import MetricsWriter
from rl.progress import Progress
from rl.step_groups import StepGroupSettings
from rl.trainer import Parts, Trainer
from rl.types import CreditedBatch, Draw, ScoredBatch, Scores, TrainBatch, Trajectory
from tests.rl.episodes import episode

TASKS = [f"task {n}" for n in range(7)]


@dataclasses.dataclass(frozen=True)
class State:
    updates: int = 0
    params: None = None


class FakeLearner:
    """The stages without a model; the state counts updates."""

    row_multiple = 1

    def __init__(self) -> None:
        self.batches: list[TrainBatch] = []

    def place(self, batch: TrainBatch) -> TrainBatch:
        self.batches.append(batch)
        return batch

    def score(self, state: State, batch: TrainBatch) -> ScoredBatch:
        zeros = np.zeros(batch.responses.valid.shape, np.float32)
        old = tuple(Scores(rows.logp_sampler, rows.logp_sampler) for rows in batch.rows)
        return ScoredBatch(batch, old, (), zeros, zeros, zeros)

    def credit(self, state: State, scored: ScoredBatch, iteration: int) -> tuple[State, CreditedBatch]:
        zeros = np.zeros(scored.entropy.shape, np.float32)
        valid = scored.batch.responses.valid
        return state, CreditedBatch(scored, zeros, zeros + 1, zeros, zeros, valid, zeros, zeros > 0, zeros)

    def update(self, state: State, credited: CreditedBatch, blind: Any) -> tuple[State, Updated]:
        zeros = np.zeros(credited.alpha.shape, np.float32)
        return State(state.updates + 1), Updated({}, zeros, zeros)


class FakeRollout:
    """Plays what it is given: one member of a group succeeds where `live` says so."""

    def __init__(self, live: Any):
        self.live, self.calls = live, []

    def collect(self, params: Any, draws: list[Draw], *, on_episode: Any = None) -> list[Trajectory]:
        self.calls.append(draws)
        out = []
        for draw in draws:
            won = draw.member == 0 and self.live(draw)
            played = episode(draw.group, draw.member, [(2, 1)], reward=float(won))
            out.append(dataclasses.replace(played, draw=draw))
        return out


class FakeCheckpoints:
    def __init__(self) -> None:
        self.saved: list[tuple[int, int, int, int]] = []  # step, updates, iteration, cursor

    def save(self, step: int, state: State, extra: dict[str, Any], *, tokenizer: Any) -> None:
        self.saved.append((step, state.updates, extra["iteration"], extra["task_cursor"]))


def make(
    tmp_path: Path, *, live: Any = lambda draw: True, iteration: int = 0, cursor: int = 0, **changes: Any
) -> tuple[Trainer, Any, Any, FakeCheckpoints]:
    config = common.base()
    config.update_from_flattened_dict(
        {
            "rollout.groups": 2,
            "rollout.group_size": 2,
            "train.iterations": 2,
            "train.checkpoint_every": 1,
            "eval.splits": (),
            "eval.every": 0,
            "log.tensorboard": False,
            "log.transcripts": 0,
            "learner.row_buckets": (8,),
            "learner.response_bucket": 8,
        }
        | changes
    )
    learner: Any = FakeLearner()
    rollout: Any = FakeRollout(live)
    checkpoints: Any = FakeCheckpoints()
    state: Any = State()
    parts = Parts(
        workdir=tmp_path,
        learner=learner,
        state=state,
        rollout=rollout,
        eval_rollout=rollout,
        tasks={"train": TASKS},
        tokenizer=None,
        writer=MetricsWriter(tmp_path, tensorboard=False),
        checkpoints=checkpoints,
        progress=Progress(2, console=Console(file=io.StringIO())),
        iteration=iteration,
        cursor=cursor,
        selection=builder.selection(config.selection),
        step_groups=StepGroupSettings(),
        blind=builder.blind_settings(config.attribution),
    )
    return Trainer(config, parts), rollout, learner, checkpoints


# draws


def test_a_group_is_a_draw_of_a_task(tmp_path: Path) -> None:
    trainer, *_ = make(tmp_path)
    draws = trainer.draws(groups=3, drawn=0)
    assert [(d.group, d.member) for d in draws] == [(g, m) for g in range(3) for m in range(2)]
    assert all(draws[2 * g].task == draws[2 * g + 1].task for g in range(3))
    assert len({d.seed for d in draws}) == 6


def test_later_rounds_go_on_where_earlier_ones_ended(tmp_path: Path) -> None:
    trainer, *_ = make(tmp_path)
    assert trainer.draws(groups=2, drawn=0) + trainer.draws(groups=3, drawn=2) == trainer.draws(
        groups=5, drawn=0
    )


def test_a_pass_meets_every_task_once_and_the_next_one_in_another_order(tmp_path: Path) -> None:
    trainer, *_ = make(tmp_path)
    tasks = [d.task for d in trainer.draws(groups=14, drawn=0) if d.member == 0]
    assert sorted(tasks[:7]) == sorted(tasks[7:]) == TASKS
    assert tasks[:7] != tasks[7:] and tasks[:7] != TASKS
    # the cursor is the only thing that the order depends on
    later, *_ = make(tmp_path, cursor=5)
    assert [d.task for d in later.draws(groups=4, drawn=0) if d.member == 0] == tasks[5:9]


def test_seeds_depend_on_run_iteration_and_place(tmp_path: Path) -> None:
    seeds = [
        [d.seed for d in make(tmp_path, **where)[0].draws(groups=2, drawn=0)]
        for where in ({}, {"iteration": 1}, {"seed": 1}, {})
    ]
    assert seeds[0] == seeds[3]
    assert not set(seeds[0]) & (set(seeds[1]) | set(seeds[2]))


# iterations


def test_iterations_move_the_cursor_and_write_what_they_did(tmp_path: Path) -> None:
    trainer, rollout, _, checkpoints = make(tmp_path)
    trainer.run()
    assert [[d.task for d in call if d.member == 0] for call in rollout.calls] == [
        [d.task for d in make(tmp_path / "x", cursor=c)[0].draws(groups=2, drawn=0) if d.member == 0]
        for c in (0, 2)
    ]
    assert checkpoints.saved == [(0, 0, 0, 0), (1, 1, 1, 2), (2, 2, 2, 4)]


def test_rounds_of_dynamic_sampling(tmp_path: Path) -> None:
    """Only task 3's and 5's groups are live: rounds go on until two are found, and all draws move the cursor."""
    trainer, rollout, learner, checkpoints = make(
        tmp_path,
        live=lambda draw: draw.task in ("task 3", "task 5"),
        **{"selection.reject_uniform": True, "train.iterations": 1},
    )
    trainer.run()
    drawn = sum(len(call) // 2 for call in rollout.calls)
    assert len(rollout.calls) > 1 and drawn <= 7
    assert [d for call in rollout.calls for d in call] == make(tmp_path / "x")[0].draws(groups=drawn, drawn=0)
    assert trainer.cursor == checkpoints.saved[-1][3] == drawn
    table = learner.batches[0].responses
    assert table.group[table.valid].tolist() == [0, 0, 1, 1]
    assert table.outcome[table.valid].tolist() == [1, 0, 1, 0]
    row = trainer.parts.writer._last
    assert (row["selection/rounds"], row["selection/groups_sampled"]) == (len(rollout.calls), drawn)
    assert row["rollout/episodes"] == 2 * drawn, "the rollout's metrics are those of all that was played"
    assert row["rollout/mixed_groups"] == pytest.approx(2 / drawn)


def test_a_starved_run_saves_the_last_whole_iteration(tmp_path: Path) -> None:
    changes = {"selection.reject_uniform": True, "selection.tries": 3, "train.checkpoint_every": 10}
    live = {"now": True}
    trainer, rollout, _, checkpoints = make(tmp_path, live=lambda draw: live["now"], **changes)
    iterate = trainer._iterate

    def dry_up() -> None:
        live["now"] = trainer.iteration == 0
        iterate()

    trainer._iterate = dry_up  # type: ignore[method-assign]
    with pytest.raises(selection.Starved, match=r"only 0 of 2 groups .* after 3 rounds"):
        trainer.run()
    assert len(rollout.calls) == 1 + 3
    assert checkpoints.saved[-1] == (1, 1, 1, 2), "a run that goes on repeats the draws"


def test_nothing_but_failures_is_an_error(tmp_path: Path) -> None:
    trainer, rollout, *_ = make(tmp_path)
    collect = rollout.collect

    def broken(params: Any, draws: list[Draw], *, on_episode: Any = None) -> list[Trajectory]:
        return [dataclasses.replace(t, failed="worker died") for t in collect(params, draws)]

    rollout.collect = broken
    with pytest.raises(RuntimeError, match="every episode of iteration 0 failed; the first: worker died"):
        trainer.run()
