"""The SLURM launcher against a stand-in for submitit: what is submitted, waited for and cancelled."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tools.jobs import Job, Stopped, last_lines
from tools.slurm_launcher import SlurmLauncher, Work


class FakeTask:
    def __init__(self, work: Any, *, hangs: bool):
        self.cancelled, self._hangs = False, hangs
        self._result = None if hangs else pickle.loads(pickle.dumps(work))()

    def done(self) -> bool:
        return not self._hangs

    def exception(self) -> Exception | None:
        return RuntimeError("node lost\nsecond line") if self._result == 4 else None

    def result(self) -> int | None:
        return self._result

    def cancel(self) -> None:
        self.cancelled = True


class FakeExecutor:
    hangs = False
    made: list[FakeExecutor]

    def __init__(self, folder: Path, cluster: str):
        self.folder, self.cluster, self.parameters, self.tasks = folder, cluster, {}, []
        self.batched = False
        FakeExecutor.made.append(self)

    def update_parameters(self, **parameters: Any) -> None:
        if "colour" in parameters:
            raise NameError("Unknown argument(s): colour")
        self.parameters |= parameters

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        self.batched = True
        yield

    def submit(self, work: Any) -> FakeTask:
        assert self.batched
        self.tasks.append(FakeTask(work, hangs=self.hangs))
        return self.tasks[-1]


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> type[FakeExecutor]:
    monkeypatch.setitem(sys.modules, "submitit", types.SimpleNamespace(AutoExecutor=FakeExecutor))
    monkeypatch.setattr(FakeExecutor, "made", [], raising=False)
    return FakeExecutor


class Notes:
    def __init__(self, *, stop: bool = False):
        self.lines: list[str] = []
        self._stop = stop

    def started(self, job: Job) -> None:
        self.lines.append(f"+{job.name}")

    def ended(self, job: Job, why: str) -> None:
        self.lines.append(f"-{job.name} {why}")

    def tick(self, running: Sequence[Job]) -> None:
        if self._stop:
            os.kill(os.getpid(), signal.SIGTERM)


def jobs(path: Path) -> list[Job]:
    def job(name: str, program: str, finished: bool = False) -> Job:
        return Job(name, [sys.executable, "-S", "-c", program], path / name, lambda: finished)

    return [
        job("a", "print('hello')"),
        job("done", "", True),
        job("bad", "raise SystemExit(3)"),
        job("lost", "raise SystemExit(4)"),
    ]


def test_array(executor: type[FakeExecutor], tmp_path: Path) -> None:
    notes = Notes()
    launcher = SlurmLauncher(tmp_path / "slurm", 2, {"gpus_per_node": 1, "timeout_min": 60})
    launcher.run(jobs(tmp_path), notes)
    (made,) = executor.made
    assert (made.folder, made.cluster) == (tmp_path / "slurm", "slurm")
    assert made.parameters == {
        "timeout_min": 60,
        "nodes": 1,
        "tasks_per_node": 1,
        "gpus_per_node": 1,
        "slurm_array_parallelism": 2,
    }
    assert notes.lines == [
        "-done ",
        "+a",
        "+bad",
        "+lost",
        "-a exit status 0",
        "-bad exit status 3",
        "-lost RuntimeError: node lost",
    ]
    assert last_lines(tmp_path / "a" / "log.txt") == ["hello"]


def test_all_finished_needs_no_queue(executor: type[FakeExecutor], tmp_path: Path) -> None:
    SlurmLauncher(tmp_path).run(jobs(tmp_path)[1:2], Notes())
    assert executor.made == []


def test_stop_cancels(executor: type[FakeExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "hangs", True)
    with pytest.raises(Stopped):
        SlurmLauncher(tmp_path).run(jobs(tmp_path), Notes(stop=True))
    assert [task.cancelled for task in executor.made[0].tasks] == [True, True, True]


def test_checkpoint_saves_and_is_queued_again(
    executor: type[FakeExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit calls `checkpoint` from a signal handler, in the middle of the call."""
    requeued = types.SimpleNamespace(DelayedSubmission=lambda work: ("again", work))
    monkeypatch.setattr(sys.modules["submitit"], "helpers", requeued, raising=False)
    program = (
        "import os, signal, sys, time; signal.signal(15, lambda *_: (print('saved'), sys.exit(0)));"
        "os.kill(os.getppid(), signal.SIGUSR2); time.sleep(60)"
    )
    work = Work([sys.executable, "-S", "-c", program], tmp_path / "a" / "log.txt")
    got: list[Any] = []
    before = signal.signal(signal.SIGUSR2, lambda *_: got.append(work.checkpoint()))
    try:
        assert work() == 0
    finally:
        signal.signal(signal.SIGUSR2, before)
    ((word, again),) = got
    assert word == "again" and last_lines(work.log) == ["saved"]
    assert pickle.loads(pickle.dumps(again)).command == work.command


def test_errors(executor: type[FakeExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="colour"):
        SlurmLauncher(tmp_path, parameters={"colour": 1}).run(jobs(tmp_path), Notes())
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match="slurm"):
        SlurmLauncher(tmp_path).run(jobs(tmp_path), Notes())
