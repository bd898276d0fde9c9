"""The figure of growth curves: speed above, peak memory below, a column an axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from tools import panels
from tools.benchmarks.growth import Point
from tools.benchmarks.report import Case

_COLOUR = "#4c72b0"
_LABELS = {
    "batch": "sequences",
    "context": "tokens of context, one sequence",
    "vocabulary": "vocabulary",
    "trajectories": "trajectories of an iteration",
}


def draw(found: Sequence[tuple[Point, Case]], path: Path, *, title: str) -> None:
    """Medians with the range of all rounds. Points whose contestant was lost are left out."""
    axes_names = list(dict.fromkeys(point.axis for point, _ in found))
    figure, axes = plt.subplots(
        2, len(axes_names), figsize=(4.2 * len(axes_names), 6.0), sharex="col", layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for column, name in enumerate(axes_names):
        line = [(p.value, case) for p, case in found if p.axis == name and case.measured[0].seconds]
        _column(axes[0, column], axes[1, column], line, whole=name == "trajectories")
        axes[1, column].set_xlabel(_LABELS[name])
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    panels.save(figure, path)


def _column(speed: Any, memory: Any, line: Sequence[tuple[int, Case]], *, whole: bool) -> None:
    """`whole`: seconds of the whole work instead of tokens/s."""
    values = [value for value, _ in line]
    runs = [case.measured[0] for _, case in line]
    if whole:
        middle = [run.median_s or 0.0 for run in runs]
        low, high = [min(run.seconds) for run in runs], [max(run.seconds) for run in runs]
    else:
        tokens = [case.tokens for _, case in line]
        middle = [count / (run.median_s or 1.0) for count, run in zip(tokens, runs)]
        low = [count / max(run.seconds) for count, run in zip(tokens, runs)]
        high = [count / min(run.seconds) for count, run in zip(tokens, runs)]
    speed.plot(values, middle, marker="o", color=_COLOUR)
    speed.fill_between(values, low, high, color=_COLOUR, alpha=0.2, linewidth=0)
    speed.set_ylabel("seconds an iteration" if whole else "tokens/s")
    memory.plot(values, [run.peak_bytes / 1e9 for run in runs], marker="o", color=_COLOUR)
    memory.set_ylabel("peak memory (GB)")
    for axes in (speed, memory):
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xticks(values, [f"{value:,}" for value in values], rotation=45)
        panels.dress(axes)
