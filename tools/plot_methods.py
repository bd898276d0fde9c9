"""Draws methods side by side: the mean over each method's runs, with the 95 % interval of that mean as a band.

The panel of entropy shows the passage from exploring to exploiting; with a baseline a third panel shows, paired by
seed, where a method is more or less certain than it (AEM, analyses B and C).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rl import metrics
from tools import outcomes, panels
from tools.curves import Rows, over_runs
from tools.spread import band

SPLITS = {"valid_seen": "held-out games, seen rooms", "valid_unseen": "unseen rooms"}
_COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452", "#937860")
_ENTROPY = "policy/entropy_mean"


def plot_methods(
    groups: Mapping[str, Sequence[Path]],
    png_path: str | Path,
    *,
    split: str = "valid_seen",
    baseline: str = "",
) -> None:
    """Draws success and entropy over iterations.

    Args:
      groups: the metrics files of each method's runs.
      split: whose evaluations the lines of the success panel are.
      baseline: the method that entropies are compared with; "" leaves that panel out.

    Raises:
      ValueError: if the baseline is none of the groups, or no other group has a seed in common with it.
    """
    if baseline and baseline not in groups:
        raise ValueError(f"{baseline=} is none of {', '.join(groups)}")
    runs = {label: [metrics.read(path) for path in paths] for label, paths in groups.items()}
    figure, axes = panels.stacked((1.7, 1.2, 1.0) if baseline else (1.7, 1.2))
    for number, ((label, some), colour) in enumerate(zip(runs.items(), _colours())):
        named = f"{label} ({len(some)} run{'s' if len(some) > 1 else ''})"
        beside = 0.012 * (number - (len(runs) - 1) / 2)  # or bars of one iteration hide each other
        _lines(axes[0], some, f"eval/{split}_success", colour, named, beside=beside)
        _band(axes[0], some, "rollout/success_mean", colour, shade=False, linestyle=":", linewidth=1.0)
        _band(axes[1], some, _ENTROPY, colour, label=label)
    many = any(len(some) > 1 for some in runs.values())
    panels.success(
        axes[0],
        f"{SPLITS.get(split, split)}; dotted: training games"
        + ("\nbars and bands: Student's 95 % interval of the mean over runs" if many else ""),
        legend=False,
    )
    # Outside: bars of few runs reach everywhere.
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    panels.entropy(axes[1])
    axes[1].set_ylim(top=_top(axes[1]))
    if baseline:
        _differences(axes[2], groups, runs, baseline)
    panels.iterations(axes[-1])
    panels.save(figure, png_path)


def _lines(axes: Axes, runs: Sequence[Rows], name: str, colour: str, label: str, *, beside: float) -> None:
    """`beside` moves the points, as a share of the iterations."""
    iterations, values = over_runs(runs, name, smoothed=False)
    if not len(iterations):
        return
    mean, low, high = (np.clip(part, 0, 1) for part in band(values))
    places, error = iterations + beside * np.ptp(iterations), np.stack([mean - low, high - mean])
    axes.errorbar(
        places, mean, yerr=error, color=colour, marker="o", markersize=4,
        linewidth=1.6, capsize=2.5, elinewidth=1, label=label,
    )  # fmt: skip


def _band(
    axes: Axes, runs: Sequence[Rows], name: str, colour: str, *, shade: bool = True, **style: Any
) -> None:
    iterations, values = over_runs(runs, name, smoothed=True)
    _draw(axes, iterations, values, colour, shade=shade, **style)


def _draw(
    axes: Axes, iterations: np.ndarray, values: np.ndarray, colour: str, *, shade: bool = True, **style: Any
) -> None:
    if not len(iterations):
        return
    mean, low, high = band(values)
    axes.plot(iterations, mean, color=colour, **style)
    if shade and values.shape[1] > 1:
        axes.fill_between(iterations, low, high, color=colour, alpha=0.15, linewidth=0)


def _differences(
    axes: Axes, groups: Mapping[str, Sequence[Path]], runs: Mapping[str, Sequence[Rows]], baseline: str
) -> None:
    """Entropy minus the baseline's of the same seed, smoothed as the curves are."""
    base = _by_seed(groups[baseline], runs[baseline])
    drawn = 0
    for (label, some), colour in zip(runs.items(), _colours()):
        if label == baseline:
            continue
        other = _by_seed(groups[label], some)
        common = sorted(base.keys() & other.keys())
        if not common:
            continue
        pairs = [run for seed in common for run in (base[seed], other[seed])]
        iterations, values = over_runs(pairs, _ENTROPY, smoothed=True)
        _draw(axes, iterations, values[:, 1::2] - values[:, ::2], colour)
        drawn += 1
    if not drawn:
        raise ValueError(f"no run has a seed in common with one of {baseline=}, so there is nothing to pair")
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_ylabel(f"entropy minus\n{baseline}'s, same seed")
    axes.set_ylim(-(limit := _top(axes, both=True)), limit)
    panels.dress(axes)


def _by_seed(paths: Sequence[Path], runs: Sequence[Rows]) -> dict[int, Rows]:
    seeds = [outcomes.method_and_seed(path.parent)[1] for path in paths]
    return {seed: rows for seed, rows in zip(seeds, runs) if seed is not None}


def _top(axes: Axes, *, both: bool = False) -> float:
    """A limit that follows the lines: with two or three runs a band can be many times as wide."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()] or [[0.0]])
    top = float(np.max(np.abs(values) if both else values))
    return 1.6 * top if top > 0 else 1.0


def _colours() -> Any:
    while True:
        yield from _COLOURS
