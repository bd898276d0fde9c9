"""The display of a sweep: a bar for all cells and one for each that runs on a terminal, one line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tools.jobs import Job, last_lines
from tools.outcomes import Outcome

_LOOK_S = 2.0


class SweepProgress:
    """A `tools.jobs.Watch` that shows what it is told and keeps the names of jobs that failed.

    Args:
      total: jobs of the sweep.
      iterations: of each job's run, by the job's name.
      outcome: reads a job's directory.
    """

    def __init__(
        self,
        total: int,
        iterations: dict[str, int],
        outcome: Callable[[Job], Outcome],
        *,
        console: Console | None = None,
    ):
        self.console = console or Console()
        self.failed: dict[str, str] = {}
        self._total, self._iterations, self._outcome = total, iterations, outcome
        self._looked = 0.0
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._whole = self._bars.add_task("cells", total=total)
        self._cells: dict[str, Any] = {}
        self._done = 0

    def __enter__(self) -> SweepProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def message(self, text: str) -> None:
        """Prints a line that stays."""
        self.console.print(Text(text), soft_wrap=True)

    def started(self, job: Job) -> None:
        at = self._outcome(job).iteration
        self.message(
            f"{job.name}: "
            + (f"was at iteration {at}, goes on from its last checkpoint" if at >= 0 else "starts")
        )
        total = self._iterations[job.name]
        self._cells[job.name] = self._bars.add_task(job.name, total=total, completed=max(0, at))

    def ended(self, job: Job, why: str) -> None:
        """A job failed if its directory does not hold the whole run, whatever its exit status."""
        self._done += 1
        self._bars.advance(self._whole)
        if job.name in self._cells:
            self._bars.remove_task(self._cells.pop(job.name))
        at, found = f"[{self._done}/{self._total}]", self._outcome(job)
        if found.state == "finished":
            rates = (f"{split} {rate:.1%}" for split, rate in found.success.items())
            self.message(f"{at} {job.name}: {', '.join(rates)}" + ("" if why else " (was finished)"))
            return
        self.failed[job.name] = why
        self.message(f"{at} {job.name} failed after iteration {found.iteration}: {why}. End of {job.log}:")
        for line in last_lines(job.log):
            self.message(f"    {line}")

    def tick(self, running: Sequence[Job]) -> None:
        if self._bars.disable or time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        for job in running:
            self._bars.update(self._cells[job.name], completed=max(0, self._outcome(job).iteration))
