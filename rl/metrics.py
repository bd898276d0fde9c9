"""Metrics of a run: one JSONL file that is the record, TensorBoard and Weights & Biases beside it.

Names are `section/name_stat`. A mean is folded from a numerator and a denominator, so that parts of a batch and
processes can be added before dividing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_Z95 = 1.959963984540054  # 97.5 % quantile of the normal distribution


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Returns the Wilson score interval (95 %) of a success rate; (0, 1) when nothing was counted.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes=} must lie in 0..{n=}")
    if n == 0:
        return 0.0, 1.0
    rate, z2 = successes / n, _Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    # At 0 and n successes the bound is exactly 0 or 1; rounding must not step over it.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def pearson(one: np.ndarray, two: np.ndarray, *, tolerance: float = 1e-6) -> float:
    """Returns Pearson's r over all elements; NaN without any, or where either does not vary.

    What varies by less than `tolerance` of its largest magnitude is rounding (of float32, by default).
    """
    one, two = np.asarray(one, np.float64), np.asarray(two, np.float64)
    if not one.size or any(x.std() <= tolerance * np.abs(x).max() for x in (one, two)):
        return math.nan
    one, two = one - one.mean(), two - two.mean()
    return float((one * two).sum() / math.sqrt(np.square(one).sum() * np.square(two).sum()))


def fold(pairs: Mapping[str, tuple[float, float]], *, stat: str = "mean") -> dict[str, float]:
    """Returns {"section/name_mean": numerator / denominator}; NaN where nothing was counted."""
    return {
        f"{name}_{stat}": float(top) / float(bottom) if float(bottom) else math.nan
        for name, (top, bottom) in pairs.items()
    }


def add(
    one: Mapping[str, tuple[float, float]], two: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Returns the sums of two sets of (numerator, denominator); a name in only one of them is taken as it is."""
    total = dict(one)
    for name, (top, bottom) in two.items():
        has_top, has_bottom = total.get(name, (0.0, 0.0))
        total[name] = (has_top + top, has_bottom + bottom)
    return total


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the rows of a metrics.jsonl, one an iteration; a last line that was cut short is left out."""
    rows = []
    for line in Path(path).read_bytes().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


class MetricsWriter:
    """Writes `metrics.jsonl` in a run directory, one flushed object an iteration.

    Nothing is touched or started before the first `write`: who opens a run only to look at it leaves it as it is.

    What is not finite is written as null, which every JSON reader takes. A second `write` of the last iteration (an
    evaluation after its training step) is merged into that iteration's object.

    Args:
      directory: the run directory.
      resume: the iteration that training goes on from; later rows of an interrupted run are dropped at the first
        write, so that no iteration appears twice. None starts the file anew.
      tensorboard: writes events into `directory/tensorboard`.
      wandb_project: "" for no Weights & Biases; else the project to log to, under the directory's name.
      config: shown by Weights & Biases.
      enabled: False in every process but the one that writes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        resume: int | None = None,
        tensorboard: bool = True,
        wandb_project: str = "",
        config: Mapping[str, Any] | None = None,
        enabled: bool = True,
    ):
        self.directory, self.enabled = Path(directory), enabled
        self.path = self.directory / "metrics.jsonl"
        self._resume, self._tensorboard = resume, tensorboard
        self._project, self._config = wandb_project, config
        self._file: BinaryIO | None = None
        self._events: Any = None
        self._wandb: Any = None
        if enabled and wandb_project:
            _wandb(wandb_project)  # a missing package is said now, not after an iteration
        kept = self._kept() if enabled else []
        self._last: dict[str, Any] = kept[-1] if kept else {}
        self._last_place = 0

    def _kept(self) -> list[dict[str, Any]]:
        last = -1 if self._resume is None else self._resume
        return (
            [row for row in read(self.path) if row.get("iteration", -1) <= last] if self.path.exists() else []
        )

    def _open(self) -> BinaryIO:
        if self._project:
            self._wandb = _start_wandb(self._project, self.directory, self._config)
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = [_line(row) for row in self._kept()]
        temporary = self.path.with_name(f".{self.path.name}")
        temporary.write_bytes(b"".join(lines))
        os.replace(temporary, self.path)
        self._last_place = sum(map(len, lines[:-1]))
        if self._tensorboard:
            from tensorboardX import SummaryWriter  # slow to import, and optional by config

            purge = None if self._resume is None else self._resume + 1
            self._events = SummaryWriter(str(self.directory / "tensorboard"), purge_step=purge)
        return open(self.path, "ab")

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for sink in (self._file, self._events):
            if sink is not None:
                sink.close()
        if self._wandb is not None:
            self._wandb.finish()
        self._file = self._events = self._wandb = None
        self.enabled = False

    def evaluated(self, iteration: int) -> bool:
        """True if the last row is that of `iteration` and holds an evaluation."""
        return self._last.get("iteration") == iteration and any(n.startswith("eval/") for n in self._last)

    def write(self, iteration: int, values: Mapping[str, Any]) -> None:
        """Writes the metrics of an iteration: numbers, arrays of one number, or strings.

        Raises:
          ValueError: if the iteration is earlier than the last one.
        """
        if not self.enabled:
            return
        last = self._last.get("iteration", -1)
        if iteration < last:
            raise ValueError(f"metrics of {iteration=} come after those of iteration {last}")
        if self._file is None:
            self._file = self._open()
        row = {name: _plain(value) for name, value in values.items()}
        if iteration == last:
            self._file.truncate(self._last_place)
            self._last |= row
        else:
            self._last = {"iteration": iteration, **row}
        self._last["iteration"] = iteration
        self._file.seek(0, os.SEEK_END)
        self._last_place = self._file.tell()
        self._file.write(_line(self._last))
        self._file.flush()
        numbers = {
            name: value
            for name, value in row.items()
            if isinstance(value, int | float) and name != "iteration"
        }
        if self._events is not None:
            for name, value in numbers.items():
                self._events.add_scalar(name, value, iteration)
            self._events.flush()
        if self._wandb is not None:
            self._wandb.log(numbers, step=iteration)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    number = value.item() if hasattr(value, "item") else float(value)
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def _wandb(project: str) -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError:
        raise ValueError(
            f"config.log.wandb_project={project!r} needs Weights & Biases: pip install -e '.[wandb]', or leave it empty"
        ) from None
    return wandb


def _start_wandb(project: str, directory: Path, config: Mapping[str, Any] | None) -> Any:
    # One id for one directory: a resumed run goes on in the same curves.
    name = directory.absolute().name
    return _wandb(project).init(
        project=project, name=name, id=name, resume="allow", dir=str(directory), config=dict(config or {})
    )
