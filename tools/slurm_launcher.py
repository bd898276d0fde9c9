"""Runs jobs through SLURM as one array, with submitit. A job that meets its time limit is queued again and goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.jobs import Job, Stopped, Watch, lock, start
from tools.local_launcher import arriving

_DEFAULTS = {"timeout_min": 24 * 60, "nodes": 1, "tasks_per_node": 1}


class Work:
    """What a node runs. submitit calls `checkpoint` before a time limit or a preemption and queues what it returns."""

    def __init__(self, command: Sequence[str], log: Path):
        self.command, self.log = list(command), log
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        held = lock(self.log.parent, wait=True)
        assert held is not None
        with held:
            self._child = start(self.command, self.log, held)
        # Not wait(): it holds a lock that `checkpoint`, called from a signal handler inside it, would wait for.
        while (code := self._child.poll()) is None:
            time.sleep(0.2)
        return code

    def checkpoint(self) -> Any:
        import submitit  # pyright: ignore[reportMissingImports]  (an extra)

        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)  # it saves its last whole iteration
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(60)
        return submitit.helpers.DelayedSubmission(Work(self.command, self.log))


@dataclasses.dataclass(frozen=True)
class SlurmLauncher:
    """One job array.

    Args:
      folder: submitit's own files.
      parallel: array tasks at a time; 0 = all.
      parameters: submitit's, such as {"slurm_partition": "gpu", "gpus_per_node": 1, "timeout_min": 240}.
      cluster: "slurm", or what else submitit knows.
      look_s: seconds between two looks at the queue.
    """

    folder: Path
    parallel: int = 0
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cluster: str = "slurm"
    look_s: float = 5.0

    def run(self, jobs: Sequence[Job], watch: Watch) -> None:
        """Returns when all have ended, whatever became of them.

        Raises:
          ValueError: without submitit, or for a parameter that it does not know.
          Stopped: after SIGTERM or SIGINT, once every job is cancelled.
        """
        try:
            import submitit  # pyright: ignore[reportMissingImports]  (an extra)
        except ImportError:
            raise ValueError("--launcher=slurm needs submitit: pip install -e '.[slurm]'") from None
        todo = []
        for job in jobs:
            if job.finished():
                watch.ended(job, "")
            else:
                todo.append(job)
        if not todo:
            return
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        parameters = _DEFAULTS | dict(self.parameters)
        if self.cluster == "slurm":
            parameters.setdefault("slurm_array_parallelism", self.parallel or len(todo))
        try:
            executor.update_parameters(**parameters)
        except NameError as error:  # submitit's for an unknown parameter
            raise ValueError(f"submitit: {error}") from None
        with executor.batch():
            array = [executor.submit(Work(job.command, job.log)) for job in todo]
        running = list(zip(todo, array))
        for job in todo:
            watch.started(job)
        with arriving() as arrived:
            while running and not arrived:
                for job, task in list(running):
                    if task.done():
                        running.remove((job, task))
                        watch.ended(job, _why(task))
                watch.tick([job for job, _ in running])
                until = time.monotonic() + self.look_s
                while running and not arrived and time.monotonic() < until:
                    time.sleep(0.1)
            for _, task in running:
                task.cancel()
        if arrived:
            raise Stopped(arrived[0])


def _why(task: Any) -> str:
    error = task.exception()
    if error is None:
        return f"exit status {task.result()}"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
