"""The training loop.

  draws -> rollout.collect -> selection.select -> step_groups.label -> batching.pack -> learner.score -> learner.credit
        -> blind.pack -> learner.update -> metrics

Everything random follows from (seed, iteration) and the task cursor, so a resumed run repeats the run that was not
interrupted.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl import batching, blind, evaluation, records, report, selection, step_groups
from rl.checkpoint import Checkpoints
from rl.learner import Learner, TrainState
from rl.metrics import MetricsWriter
from rl.progress import Progress
from rl.rollout import Rollout
from rl.types import Draw, Trajectory
from sharding.transfer import to_host


class Interrupted(Exception):
    """SIGTERM or SIGINT arrived; the state of the last whole iteration is to be saved."""


@dataclasses.dataclass
class Phases:
    """Seconds by phase of one iteration."""

    progress: Progress
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        self.progress.phase(name)
        started = time.perf_counter()
        out = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        return out


@dataclasses.dataclass
class Parts:
    """What a run is made of; built by `rl.builder`."""

    workdir: Path
    learner: Learner
    state: TrainState
    rollout: Rollout
    eval_rollout: Rollout
    tasks: dict[str, list[str]]
    tokenizer: Any
    writer: MetricsWriter
    checkpoints: Checkpoints
    progress: Progress
    iteration: int  # whole iterations behind `state`
    cursor: int  # task draws behind `state`
    selection: selection.SelectionSettings
    step_groups: step_groups.StepGroupSettings
    blind: blind.BlindSettings | None  # None: no term reads blind contexts


class Trainer:
    """Owns the loop and what is written; everything it uses is built in main."""

    def __init__(self, config: Any, parts: Parts):
        self.config, self.parts, self.state = config, parts, parts.state
        self.learner, self.progress, self.workdir = parts.learner, parts.progress, parts.workdir
        self.iteration, self.cursor = parts.iteration, parts.cursor
        self.stopping = False

    def run(self) -> None:
        """Trains to `train.iterations`; on SIGTERM or SIGINT saves the last whole iteration and raises Interrupted.

        A run that dynamic sampling cannot feed (`selection.Starved`) saves it too.
        """
        handlers = {sig: signal.signal(sig, self._stop) for sig in (signal.SIGTERM, signal.SIGINT)}
        total = self.config.train.iterations
        try:
            # At the start, and when a run was stopped between an iteration and its evaluation.
            if self._evaluation_is_due() and not self.parts.writer.evaluated(self.iteration):
                self._evaluate(final=self.iteration in (0, total))
            if self.iteration == 0:
                self._save()
            while self.iteration < total:
                self._iterate()
                self.iteration += 1
                last = self.iteration == total
                if self._evaluation_is_due():
                    self._evaluate(final=last)
                if last or self.iteration % self.config.train.checkpoint_every == 0:
                    self._save()
        except (Interrupted, selection.Starved):
            self._save()
            raise
        finally:
            for sig, handler in handlers.items():
                signal.signal(sig, handler)

    def _evaluation_is_due(self) -> bool:
        every = self.config.eval.every
        at_an_end = self.iteration in (0, self.config.train.iterations)
        return at_an_end or bool(every and self.iteration % every == 0)

    def draws(self, *, groups: int, drawn: int) -> list[Draw]:
        """The next `groups` tasks of a shuffled pass over the split, each `group_size` times.

        `drawn` groups were drawn before in this iteration: numbers, and so seeds, go on from there.
        """
        tasks, rollout, seed = self.parts.tasks["train"], self.config.rollout, self.config.seed
        iteration, out = self.iteration, []
        for number in range(drawn, drawn + groups):
            place = self.cursor + number
            order = random.Random(f"{seed}/{place // len(tasks)}").sample(range(len(tasks)), len(tasks))
            for member in range(rollout.group_size):
                draw = random.Random(f"{seed}/{iteration}/{number}/{member}").getrandbits(32)
                out.append(Draw(tasks[order[place % len(tasks)]], number, member, draw))
        return out

    def _iterate(self) -> None:
        config, learner = self.config, self.learner
        phases = Phases(self.progress)
        started = time.perf_counter()
        drawn = 0

        def sample(groups: int) -> list[Trajectory]:
            nonlocal drawn
            draws = self.draws(groups=groups, drawn=drawn)
            drawn += groups
            return phases.run(
                "rollout",
                lambda: self.parts.rollout.collect(self.state.params, draws, on_episode=self._on_episode),
            )

        selected = selection.select(
            sample,
            groups=config.rollout.groups,
            response_limit=config.rollout.response_limit,
            settings=self.parts.selection,
        )
        trajectories = selected.trajectories
        if all(t.failed for t in selected.sampled):
            raise RuntimeError(
                f"every episode of iteration {self.iteration} failed; the first: {trajectories[0].failed}"
            )
        step_groups.label(trajectories, self.parts.step_groups)
        packed = phases.run("batch", lambda: self._pack(trajectories))
        batch = phases.run("batch", lambda: learner.place(packed))
        scored = phases.run("score", lambda: learner.score(self.state, batch))
        gap = report.mismatch(scored)
        if (
            self.iteration == 0
            and config.model.dtype == "float32"
            and 0 < config.train.mismatch_limit < gap["max"]
        ):
            raise RuntimeError(
                f"sampler and trainer disagree on log-probabilities by {gap['max']:.2e}, "
                f"more than train.mismatch_limit={config.train.mismatch_limit:.0e}"
            )
        self.state, credited = phases.run(
            "credit", lambda: learner.credit(self.state, scored, self.iteration)
        )
        blocks, located = phases.run("blind", lambda: self._blind(trajectories, packed, credited))
        self.state, updated = phases.run("update", lambda: learner.update(self.state, credited, blocks))
        seconds = time.perf_counter() - started
        metrics = {
            "iteration": self.iteration + 1,
            **report.rollout_metrics(selected.sampled, phases.seconds["rollout"]),
            **selected.metrics,
            **report.credit_metrics(credited),
            **report.proxy_metrics(trajectories, credited),
            **{f"policy/logp_gap_{name}": value for name, value in gap.items()},
            **updated.losses,
            **located,
            **report.outlier_metrics(credited, updated),
            **{f"time/{name}": value for name, value in phases.seconds.items()},
            "time/iteration": seconds,
        }
        self.cursor += drawn
        self._record(trajectories, credited, updated)
        self.parts.writer.write(self.iteration + 1, metrics)
        self.progress.update(metrics)

    def _pack(self, trajectories: Sequence[Trajectory]) -> Any:
        learner = self.config.learner
        return batching.pack(
            trajectories,
            context=self.config.rollout.context,
            microbatch_tokens=learner.microbatch_tokens,
            row_buckets=learner.row_buckets,
            response_bucket=learner.response_bucket,
            minibatch_responses=learner.minibatch_responses,
            seed=self.iteration,
            multiple=self.learner.row_multiple,
        )

    def _blind(self, trajectories: Sequence[Trajectory], packed: Any, credited: Any) -> Any:
        """The blind contexts of the located responses, and how many there are; nothing without STAPO's terms."""
        settings, tokenizer = self.parts.blind, self.parts.tokenizer
        if settings is None:
            return (), {}
        located, extremity = to_host((credited.outlier & credited.trained, credited.extremity))
        blocks, metrics = blind.pack(
            trajectories,
            packed,
            located,
            extremity,
            encode=lambda turn: tokenizer.prompt(turn.system, turn.blind),
            settings=settings,
            multiple=self.learner.row_multiple,
        )
        return self.learner.place_blind(blocks), metrics

    def _evaluate(self, *, final: bool) -> None:
        settings = self.config.eval
        count = (settings.final_games or settings.games) if final else settings.games
        metrics: dict[str, Any] = {"iteration": self.iteration}
        started = time.perf_counter()
        for split in settings.splits:
            self.progress.phase(f"eval {split}")
            tasks = evaluation.fixed_tasks(self.parts.tasks[split], count)
            played = evaluation.evaluate(
                self.parts.eval_rollout,
                self.state.params,
                tasks,
                seed=self.config.seed,
                on_episode=self._on_episode,
            )
            metrics |= evaluation.summary(played, split)
            if final:
                name = f"eval_{split}_{self.iteration:05d}.md"
                records.write_transcript(
                    self.workdir / "transcripts" / name,
                    report.transcripts(played[: self.config.log.transcripts]),
                )
        metrics["time/eval"] = time.perf_counter() - started
        self.parts.writer.write(self.iteration, metrics)
        self.progress.update(metrics)

    def _record(self, trajectories: Sequence[Trajectory], credited: Any, updated: Any) -> None:
        log = self.config.log
        rows = report.response_rows(trajectories, credited, updated)
        if log.responses:
            records.write_responses(self.workdir / "responses" / f"{self.iteration + 1:05d}.jsonl.gz", rows)
        if log.transcripts:
            shown = [t for t in trajectories if not t.failed][:: max(1, len(trajectories) // log.transcripts)]
            path = self.workdir / "transcripts" / f"train_{self.iteration + 1:05d}.md"
            records.write_transcript(path, report.transcripts(shown[: log.transcripts], rows, trajectories))

    def _save(self) -> None:
        self.progress.phase("checkpoint")
        config = self.config
        extra = {
            "iteration": self.iteration,
            "task_cursor": self.cursor,
            "config": config.to_dict(),
        }
        self.parts.checkpoints.save(self.iteration, self.state, extra, tokenizer=self.parts.tokenizer)

    def _on_episode(self, _: Trajectory) -> None:
        if self.stopping:
            raise Interrupted(f"stopped in iteration {self.iteration + 1}")

    def _stop(self, *_: object) -> None:
        if self.stopping:  # a second signal does not wait for the end of an episode
            raise Interrupted("stopped twice")
        self.stopping = True
        self.progress.message("stopping: the last whole iteration will be saved")
