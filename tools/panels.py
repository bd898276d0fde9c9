"""The look of plots: stacked panels that share one axis, and their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter


def stacked(heights: tuple[float, ...]) -> tuple[Any, list[Axes]]:
    """Returns a figure and its panels, top to bottom."""
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(8.4, 2.45 * sum(heights)), sharex=True, height_ratios=heights,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    return figure, list(axes[:, 0])


def success(axes: Axes, title: str, *, legend: bool = True) -> None:
    """Labels a panel of shares."""
    axes.set_ylim(-0.02, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("success")
    axes.set_title(title, loc="left", fontsize=11)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="best", fontsize=9)
    dress(axes)


def entropy(axes: Axes) -> None:
    """Labels a panel of entropies."""
    axes.set_ylim(bottom=0)
    axes.set_ylabel("response entropy (nats)")
    dress(axes)


def dress(axes: Axes) -> None:
    """A light grid and two spines."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def iterations(axes: Axes) -> None:
    """Labels the shared axis; `axes` is the panel at the bottom."""
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def save(figure: Any, path: str | Path) -> None:
    """Writes the picture and frees it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
