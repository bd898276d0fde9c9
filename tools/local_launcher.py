"""Runs jobs on this machine, a few at a time, each in its own process group with its log in its directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tools.jobs import Job, Stopped, Watch, lock, start

_LOOK_S = 0.1


@dataclasses.dataclass
class _Child:
    job: Job
    process: subprocess.Popen[bytes]


@dataclasses.dataclass(frozen=True)
class LocalLauncher:
    """Bounded parallelism over `subprocess`.

    Args:
      parallel: jobs at a time.
      threads: CPUs that each job is pinned to, its own ones, and the size of its thread pools; 0 = no pinning.
      grace_s: how long a job may take to save after SIGTERM before it is killed.
    """

    parallel: int = 1
    threads: int = 0
    grace_s: float = 180.0

    def __post_init__(self) -> None:
        if self.parallel < 1:
            raise ValueError(f"parallel={self.parallel} must be at least 1")
        if self.threads * self.parallel > (have := len(_cpus())):
            raise ValueError(
                f"parallel={self.parallel} jobs of threads_per_cell={self.threads} need "
                f"{self.threads * self.parallel} CPUs; there are {have}"
            )

    def run(self, jobs: Sequence[Job], watch: Watch) -> None:
        """Returns when all have ended, whatever became of them.

        Raises:
          Stopped: after SIGTERM or SIGINT, once every child has ended. A second signal does not wait for them.
        """
        waiting, running = list(jobs), dict[int, _Child]()
        with arriving() as arrived:
            try:
                while (waiting or running) and not arrived:
                    for place in range(self.parallel):
                        if place not in running and (child := self._next(waiting, place, watch)):
                            running[place] = child
                    for place, child in list(running.items()):
                        if (code := child.process.poll()) is not None:
                            del running[place]
                            watch.ended(child.job, _why(code))
                    watch.tick([child.job for child in running.values()])
                    if waiting or running:
                        time.sleep(_LOOK_S)
            finally:
                self._end(list(running.values()), arrived)
        if arrived:
            raise Stopped(arrived[0])

    def _next(self, waiting: list[Job], place: int, watch: Watch) -> _Child | None:
        """Starts the first job that no one else runs; takes it, and those that are finished, from the list."""
        for job in list(waiting):
            if (held := lock(job.directory, wait=False)) is None:
                continue
            with held:  # closed here: from then on the child alone holds it
                waiting.remove(job)
                if job.finished():
                    watch.ended(job, "")
                    continue
                process = start(job.command, job.log, held, **self._environment())
            if self.threads:
                # Before it has any thread of its own, which would keep the old CPUs.
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process.pid, self._places(place))
            watch.started(job)
            return _Child(job, process)
        return None

    def _environment(self) -> dict[str, str]:
        if not self.threads:
            return {}
        # XLA sizes its pool by PJRT_NPROC (or by the CPUs it may use), the others by their own names.
        names = ("PJRT_NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
        return dict.fromkeys(names, str(self.threads))

    def _places(self, place: int) -> list[int]:
        return _cpus()[place * self.threads : (place + 1) * self.threads]

    def _end(self, children: Sequence[_Child], arrived: Sequence[int]) -> None:
        for child in children:
            _kill(child, signal.SIGTERM)
        limit = time.monotonic() + self.grace_s
        while any(child.process.poll() is None for child in children):
            if len(arrived) > 1 or time.monotonic() > limit:
                for child in children:
                    _kill(child, signal.SIGKILL)
            time.sleep(_LOOK_S)


def _why(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _kill(child: _Child, number: int) -> None:
    if child.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, number)


def _cpus() -> list[int]:
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    return sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def arriving() -> Iterator[list[int]]:
    """The numbers of SIGTERM and SIGINT as they arrive, instead of what they would do."""
    arrived: list[int] = []

    def note(number: int, _: Any) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
