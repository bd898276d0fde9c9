"""The progress display: a live panel on a terminal, one plain line an iteration elsewhere."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_WINDOW = 10  # iterations that the moving success and the time left look back on


class Progress:
    """Shows where a run is. Values come from the metrics that are written; nothing is measured but the time left.

    Args:
      total: iterations of the run.
      start: iterations already done by an earlier run.
      console: where to write; stdout by default.
      live: a panel that redraws itself; by default on a terminal only.
    """

    def __init__(
        self, total: int, start: int = 0, *, console: Console | None = None, live: bool | None = None
    ):
        self.total, self.iteration = total, start
        self.console = console or Console()
        self._success: collections.deque[float] = collections.deque(maxlen=_WINDOW)
        self._seconds: collections.deque[float] = collections.deque(maxlen=_WINDOW)
        self._phases: collections.Counter[str] = collections.Counter()
        self._metrics: dict[str, Any] = {}
        self._phase, self._phase_started = "starting", time.monotonic()
        self._started = self._drawn = time.monotonic()
        use_live = self.console.is_terminal if live is None else live
        self._live = (
            Live(
                console=self.console, get_renderable=self._render, refresh_per_second=4, redirect_stderr=False
            )
            if use_live
            else None
        )

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def begin(self, start: int) -> None:
        """Sets how many iterations are already done, once a checkpoint has told."""
        self.iteration = start
        self._refresh()

    def message(self, text: str) -> None:
        """Prints a line that stays, above the panel."""
        self.console.print(Text(text), soft_wrap=True)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Shows what is being done from now on; as a context, until the block ends."""
        before = self._phase
        self._phase, self._phase_started = name, time.monotonic()
        self._refresh()

        @contextlib.contextmanager
        def block() -> Iterator[None]:
            try:
                yield
            finally:
                self._phase, self._phase_started = before, time.monotonic()

        return block()

    @contextlib.contextmanager
    def bar(self, name: str, total: int) -> Iterator[Callable[..., None]]:
        """Counts long work up to `total`. Yields `advance(count=1, note="")`; off a terminal, a line every tenth."""
        done, told = 0, 0
        started = time.monotonic()

        def advance(count: int = 1, note: str = "") -> None:
            nonlocal done, told
            done += count
            left = (time.monotonic() - started) / done * max(0, total - done)
            text = f"{name} {done}/{total} {note} {_clock(left)} left".replace("  ", " ")
            self._phase = text
            if self._live:
                if time.monotonic() - self._drawn > 0.25:
                    self._refresh()
            elif done * 10 // max(1, total) > told:
                told = done * 10 // max(1, total)
                self.message(text)

        with self.phase(name):
            yield advance

    def update(self, metrics: Mapping[str, Any]) -> None:
        """Takes the metrics of an iteration or of an evaluation: see `_summary` for the names that are shown."""
        self._metrics |= metrics
        trained = "rollout/success_mean" in metrics
        self.iteration = int(metrics.get("iteration", self.iteration + trained))
        if trained:
            if _number(metrics["rollout/success_mean"]):
                self._success.append(float(metrics["rollout/success_mean"]))
            spent = {
                n.removeprefix("time/"): v for n, v in metrics.items() if n.startswith("time/") and _number(v)
            }
            whole = spent.pop("iteration", None)
            self._phases.update(spent)
            self._seconds.append(float(whole if whole is not None else sum(spent.values())))
        elif _number(metrics.get("time/eval")):
            self._phases["eval"] += metrics["time/eval"]
        if self._live is None:
            words = [
                f"{name} {value}"
                for name, value in _summary(self._metrics if trained else metrics, self._moving())
            ]
            left = f", {self._left()} left" if trained and self._left() else ""
            self.message(f"[{self.iteration}/{self.total}] {', '.join(words)}{left}")
        self._refresh()

    def _refresh(self) -> None:
        if self._live:
            self._drawn = time.monotonic()
            self._live.refresh()

    def _moving(self) -> float | None:
        return sum(self._success) / len(self._success) if self._success else None

    def _left(self) -> str:
        """Time left at the pace of the late iterations; evaluations and saves in between are not in it."""
        if not self._seconds:
            return ""
        return _clock(max(0, self.total - self.iteration) * sum(self._seconds) / len(self._seconds))

    def _render(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column()
        bar = Table.grid(padding=(0, 1))
        left = f"{self._left()} left" if self._left() else ""
        bar.add_row(
            f"{self.iteration}/{self.total}",
            ProgressBar(total=max(1, self.total), completed=self.iteration, width=32),
            Text(f"{_clock(time.monotonic() - self._started)} elapsed  {left}", style="dim"),
        )
        grid.add_row("iteration", bar)
        for name, value in _summary(self._metrics, self._moving()):
            grid.add_row(name, value)
        total = sum(self._phases.values())
        if total > 0:
            shares = [f"{name} {100 * spent / total:.0f} %" for name, spent in self._phases.most_common(7)]
            grid.add_row("time", "  ".join(shares))
        now = Text(f"{self._phase}  ", style="cyan")
        now.append(_clock(time.monotonic() - self._phase_started), style="dim")
        grid.add_row("now", now)
        return Group(Panel(grid, title="agentropy", title_align="left", box=box.ROUNDED, expand=False))


def _summary(metrics: Mapping[str, Any], moving: float | None) -> list[tuple[str, str]]:
    """The shown rows that these metrics can fill."""
    rows = []
    if _number(success := metrics.get("rollout/success_mean")):
        mean = f" (mean of {_WINDOW}: {100 * moving:.0f} %)" if moving is not None else ""
        rows.append(("success", f"{100 * success:.0f} %{mean}"))
    for name in metrics:
        if name.startswith("eval/") and f"{name}_low" in metrics and _number(rate := metrics[name]):
            low, high, n = (
                metrics[f"{name}_low"],
                metrics[f"{name}_high"],
                metrics.get(f"{name.removesuffix('_success')}_n"),
            )
            label = name.removeprefix("eval/").removesuffix("_success").replace("_", " ")
            rows.append(
                (f"eval {label}", f"{100 * rate:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {n} games")
            )
    if _number(entropy := metrics.get("policy/entropy_mean")):
        rows.append(("entropy", f"{entropy:.3f} nats"))
    low, high = metrics.get("aem/alpha_min"), metrics.get("aem/alpha_max")
    if _number(low) and _number(high):
        rows.append(("alpha", f"{low:.2f} to {high:.2f}"))
    if _number(speed := metrics.get("rollout/tokens_per_s")):
        rows.append(("tokens/s", f"{speed:,.0f}"))
    return rows


def _number(value: Any) -> TypeGuard[float]:
    return value is not None and not isinstance(value, str) and math.isfinite(value)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
