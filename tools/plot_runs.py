"""Draws success and entropy over iterations, of one run or of several with their spread.

python -m tools.plot_runs runs/alfworld_aem                             one run
python -m tools.plot_runs aem=runs/aem_* grpo=runs/grpo_* --out=ab.png  mean and range over seeds, a colour a label
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from rl import metrics

_SPLITS = {
    "valid_seen": ("held-out games, seen rooms", "#c44e52", "o"),
    "valid_unseen": ("unseen rooms", "#dd8452", "s"),
}
_TRAIN, _ENTROPY, _ALPHA = "#4c72b0", "#55a868", "#8172b3"
_COLOURS = ("#4c72b0", "#c44e52", "#55a868", "#8172b3", "#dd8452", "#937860")


def series(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns iterations and values of one metric, where it was written and is a number."""
    found = [(row["iteration"], row[name]) for row in rows if row.get(name) is not None]
    return np.array([i for i, _ in found], float), np.array([v for _, v in found], float)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Returns the mean over a centred window, cut at both ends."""
    if len(values) == 0:
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    low, high = np.maximum(0, places - window // 2), np.minimum(len(values), places + window // 2 + 1)
    return (total[high] - total[low]) / (high - low)


def plot_run(metrics_path: str | Path, png_path: str | Path, *, title: str = "") -> None:
    """Draws one run: success in training and on held-out games with 95 % intervals; entropy and alpha below.

    Raises:
      ValueError: if the file has no rows.
    """
    rows = metrics.read(metrics_path)
    if not rows:
        raise ValueError(f"{metrics_path} has no metrics to draw")
    figure, (top, bottom) = _panels()
    iterations, success = series(rows, "rollout/success_mean")
    window = max(1, min(15, len(success) // 6)) | 1  # odd, so that it has a centre
    if len(success):
        top.plot(iterations, success, color=_TRAIN, alpha=0.25, linewidth=0.8)
        label = f"training games (mean of {window})" if window > 1 else "training games"
        top.plot(iterations, smooth(success, window), color=_TRAIN, linewidth=1.8, label=label)
    for split, (label, colour, marker) in _SPLITS.items():
        _eval_points(top, rows, split, label, colour, marker)
    _finish_success(top, title or Path(metrics_path).absolute().parent.name)
    iterations, entropy = series(rows, "policy/entropy_mean")
    bottom.plot(iterations, entropy, color=_ENTROPY, alpha=0.25, linewidth=0.8)
    bottom.plot(iterations, smooth(entropy, window), color=_ENTROPY, linewidth=1.8, label="entropy")
    _finish_entropy(bottom)
    _alpha_band(bottom, rows)
    _save(figure, png_path)


def plot_runs(
    groups: Mapping[str, Sequence[str | Path]], png_path: str | Path, *, split: str = "valid_seen"
) -> None:
    """Draws groups of runs, such as the seeds of a method: the mean of each, its range as a band."""
    figure, (top, bottom) = _panels()
    for number, (label, paths) in enumerate(groups.items()):
        runs = [metrics.read(path) for path in paths]
        colour = _COLOURS[number % len(_COLOURS)]
        seeds = f" ({len(runs)} runs)" if len(runs) > 1 else ""
        _band(top, runs, "rollout/success_mean", colour, "", linestyle=":", window=15, shade=False)
        _band(top, runs, f"eval/{split}_success", colour, label + seeds, marker="o")
        _band(bottom, runs, "policy/entropy_mean", colour, label + seeds, window=15)
    _finish_success(
        top, f"lines: {_SPLITS.get(split, (split,))[0]}; dotted: training games; bands: range over runs"
    )
    _finish_entropy(bottom)
    bottom.legend(frameon=False, fontsize=9)
    _save(figure, png_path)


def _panels() -> tuple[Any, tuple[Axes, Axes]]:
    return plt.subplots(2, 1, figsize=(8.4, 6.6), sharex=True, height_ratios=(1.7, 1), layout="constrained")


def _eval_points(axes: Axes, rows: Sequence[Any], split: str, label: str, colour: str, marker: str) -> None:
    iterations, rate = series(rows, f"eval/{split}_success")
    if not len(rate):
        return
    low, high = (series(rows, f"eval/{split}_success_{end}")[1] for end in ("low", "high"))
    _, n = series(rows, f"eval/{split}_n")
    games = f"{n.min():.0f}" if n.min() == n.max() else f"{n.min():.0f} to {n.max():.0f}"
    offset = 0.004 * max(row["iteration"] for row in rows) * (1 if marker == "s" else -1)  # bars side by side
    error = np.clip(np.stack([rate - low, high - rate]), 0, None)
    axes.errorbar(
        iterations + offset, rate, yerr=error, color=colour, marker=marker, markersize=5, linewidth=1.2, capsize=2.5,
        elinewidth=1, label=f"{label} (n = {games}, 95 % interval)", zorder=3,
    )  # fmt: skip
    for place in sorted({0, len(rate) - 1}):
        above = marker == "o"
        where = (iterations[place] + offset, high[place] if above else low[place])
        axes.annotate(
            f"{100 * rate[place]:.0f} %", where, xytext=(0, 4 if above else -4), textcoords="offset points",
            ha="center", va="bottom" if above else "top", fontsize=9, color=colour,
        )  # fmt: skip


def _alpha_band(axes: Axes, rows: Sequence[Any]) -> None:
    iterations, low = series(rows, "aem/alpha_min")
    other, high = series(rows, "aem/alpha_max")
    handles, labels = axes.get_legend_handles_labels()
    if len(low) and len(low) == len(high) and np.array_equal(iterations, other):
        right = axes.twinx()
        band = right.fill_between(iterations, low, high, color=_ALPHA, alpha=0.15, linewidth=0)
        right.axhline(1, color=_ALPHA, linewidth=0.7, linestyle=":")
        right.set_ylabel("alpha, least to largest", color=_ALPHA)
        right.set_ylim(0, max(2.0, 1.1 * high.max()))
        right.spines[["top"]].set_visible(False)
        handles, labels = [*handles, band], [*labels, "AEM's alpha"]
    if handles:
        axes.legend(handles, labels, frameon=False, fontsize=9, ncols=2)


def _band(
    axes: Axes, runs: Sequence[Any], name: str, colour: str, label: str,
    *, window: int = 1, shade: bool = True, **style: Any,
) -> None:  # fmt: skip
    by_iteration: dict[float, list[float]] = collections.defaultdict(list)
    for rows in runs:
        iterations, values = series(rows, name)
        width = max(1, min(window, len(values) // 6))
        for iteration, value in zip(iterations, smooth(values, width)):
            by_iteration[iteration].append(value)
    # Only iterations that every run has: a mean over fewer runs would jump where one ends.
    whole = sorted(i for i, values in by_iteration.items() if len(values) == len(runs))
    if not whole:
        return
    values = np.array([by_iteration[i] for i in whole])
    axes.plot(whole, values.mean(1), color=colour, linewidth=1.6, markersize=4, label=label or None, **style)
    if shade and len(runs) > 1:
        axes.fill_between(whole, values.min(1), values.max(1), color=colour, alpha=0.15, linewidth=0)


def _finish_success(axes: Axes, title: str) -> None:
    axes.set_ylim(-0.02, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("success")
    axes.set_title(title, loc="left", fontsize=11)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="best", fontsize=9)
    _dress(axes)


def _finish_entropy(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.set_ylabel("response entropy (nats)")
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    _dress(axes)


def _dress(axes: Axes) -> None:
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="run directory or metrics.jsonl, or LABEL=PATH for a group")
    parser.add_argument("--out", default="", help="PNG to write; plot.png in the run directory by default")
    parser.add_argument("--split", default="valid_seen", help="evaluation split of a comparison")
    options = parser.parse_args(argv)
    groups: dict[str, list[Path]] = {}
    label = ""
    for word in options.runs:
        # A shell expands LABEL=runs/a_* only when files are so named, so paths after a label belong to it.
        name, has_label, path = word.rpartition("=")
        label = name if has_label else (label or Path(word).name)
        groups.setdefault(label, []).extend(_metrics_files(path))
    paths = [path for group in groups.values() for path in group]
    out = Path(options.out) if options.out else paths[0].parent / "plot.png"
    if len(paths) == 1:
        plot_run(paths[0], out)
    else:
        plot_runs(groups, out, split=options.split)
    print(out)


def _metrics_files(path: str) -> list[Path]:
    found = (
        sorted(Path().glob(path)) if not Path(path).is_absolute() and set(path) & set("*?[") else [Path(path)]
    )
    files = [file / "metrics.jsonl" if file.is_dir() else file for file in found]
    if missing := [str(file) for file in files if not file.is_file()] or ([] if files else [path]):
        sys.exit(f"no metrics at {', '.join(missing)}")
    return files


if __name__ == "__main__":
    main()
