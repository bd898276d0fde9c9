"""The local launcher: its bound, its locks, its CPUs, and children that do not want to end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools.jobs import Job, Stopped, last_lines, lock
from tools.local_launcher import LocalLauncher


class Notes:
    """A watch that remembers, and does something once when a job starts or at the first look."""

    def __init__(
        self, *, on_start: Callable[[], None] | None = None, on_tick: Callable[[], None] | None = None
    ):
        self.lines: list[str] = []
        self.most = 0
        self._on_start, self._on_tick = on_start, on_tick

    def started(self, job: Job) -> None:
        self.lines.append(f"+{job.name}")
        if self._on_start:
            self._on_start()

    def ended(self, job: Job, why: str) -> None:
        self.lines.append(f"-{job.name} {why}")

    def tick(self, running: Sequence[Job]) -> None:
        self.most = max(self.most, len(running))
        on_tick, self._on_tick = self._on_tick, None
        if on_tick:
            on_tick()


def job(directory: Path, program: str, *, finished: bool = False) -> Job:
    return Job(directory.name, [sys.executable, "-S", "-c", program], directory, lambda: finished)


def locked(directory: Path) -> bool:
    held = lock(directory, wait=False)
    if held:
        held.close()
    return held is None


def test_bound_skips_and_exit_statuses(tmp_path: Path) -> None:
    jobs = [job(tmp_path / f"{n}", "import time; time.sleep(0.2)") for n in range(3)]
    jobs += [
        job(tmp_path / "done", "", finished=True),
        job(tmp_path / "bad", "print('why'); raise SystemExit(3)"),
    ]
    notes = Notes()
    LocalLauncher(parallel=2).run(jobs, notes)
    assert notes.most == 2
    assert sorted(notes.lines) == sorted(
        [*(f"+{n}" for n in range(3)), *(f"-{n} exit status 0" for n in range(3))]
        + ["-done ", "+bad", "-bad exit status 3"]
    )
    assert last_lines(jobs[-1].log) == ["why"] and last_lines(tmp_path / "none") == []


def test_waits_for_a_process_of_an_earlier_launcher(tmp_path: Path) -> None:
    held = lock(tmp_path / "a", wait=False)
    assert held is not None and locked(tmp_path / "a")
    notes = Notes(on_tick=held.close)
    LocalLauncher(parallel=2).run([job(tmp_path / "a", ""), job(tmp_path / "b", "")], notes)
    assert notes.lines[0] == "+b" and "-a exit status 0" in notes.lines


def test_the_lock_lives_with_the_child(tmp_path: Path) -> None:
    taken: list[bool] = []
    notes = Notes(on_tick=lambda: taken.append(locked(tmp_path / "a")))
    LocalLauncher().run([job(tmp_path / "a", "import time; time.sleep(0.5)")], notes)
    assert taken == [True]
    assert not locked(tmp_path / "a")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities on this system")
def test_threads(tmp_path: Path) -> None:
    report = "import os; print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], os.environ['PJRT_NPROC'])"
    # The child may ask before it is pinned, which the real program, slow to import, does not.
    made = job(tmp_path / "a", f"import time; time.sleep(0.3); {report}")
    LocalLauncher(threads=1).run([made], Notes())
    assert last_lines(made.log) == ["1 1 1"]
    with pytest.raises(ValueError, match="need"):
        LocalLauncher(parallel=2, threads=len(os.sched_getaffinity(0)))


def test_stop(tmp_path: Path) -> None:
    """One child saves and ends, one ignores the request and is killed after its time; both are gone, none is new."""
    ready = "open('{0}', 'w').close(); time.sleep(60)"
    polite = "import signal, sys, time; signal.signal(15, lambda *_: (print('saved'), sys.exit(0))); "
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); "
    names = {"polite": polite, "stubborn": stubborn}
    jobs = [
        job(tmp_path / name, text + ready.format(tmp_path / f"{name}.up")) for name, text in names.items()
    ]
    jobs.append(job(tmp_path / "never", ""))

    def interrupt() -> None:
        until = time.monotonic() + 30
        while not all((tmp_path / f"{name}.up").exists() for name in names) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    notes = Notes(on_tick=interrupt)
    before = signal.getsignal(signal.SIGINT)  # ignored, where a shell started the tests in the background
    with pytest.raises(Stopped) as stopped:
        LocalLauncher(parallel=2, grace_s=0.5).run(jobs, notes)
    assert stopped.value.number == signal.SIGINT
    assert last_lines(jobs[0].log) == ["saved"]
    assert notes.lines == ["+polite", "+stubborn"]
    assert not locked(tmp_path / "polite") and not locked(tmp_path / "stubborn")
    assert signal.getsignal(signal.SIGINT) is before
