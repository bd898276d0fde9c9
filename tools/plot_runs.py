"""Draws success and entropy over iterations, of one run or of methods with several seeds each.

python -m tools.plot_runs runs/alfworld_aem                              one run, with its intervals and AEM's alpha
python -m tools.plot_runs --runs='DIR/*-seed*' --baseline=grpo --out=ab.png   a sweep: a colour a method, and a table
python -m tools.plot_runs aem=runs/a1 runs/a2 grpo=runs/b                runs grouped by hand

Several runs are grouped by the names of their directories, METHOD-seedN or METHOD-seed=N. Beside their plot lies a
Markdown table of their last evaluations: mean, deviation, 95 % interval and number of seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from rl import metrics
from tools import ablation_table, outcomes, panels
from tools.curves import series, smooth, window_of
from tools.plot_methods import SPLITS, plot_methods

_STYLES = {"valid_seen": ("#c44e52", "o"), "valid_unseen": ("#dd8452", "s")}
_TRAIN, _ENTROPY, _ALPHA = "#4c72b0", "#55a868", "#8172b3"


def plot_run(metrics_path: str | Path, png_path: str | Path, *, title: str = "") -> None:
    """Draws one run: success in training and on held-out games with 95 % intervals; entropy and alpha below.

    Raises:
      ValueError: if the file has no rows.
    """
    rows = metrics.read(metrics_path)
    if not rows:
        raise ValueError(f"{metrics_path} has no metrics to draw")
    figure, (top, bottom) = panels.stacked((1.7, 1.0))
    iterations, success = series(rows, "rollout/success_mean")
    window = window_of(len(success))
    if len(success):
        top.plot(iterations, success, color=_TRAIN, alpha=0.25, linewidth=0.8)
        label = f"training games (mean of {window})" if window > 1 else "training games"
        top.plot(iterations, smooth(success, window), color=_TRAIN, linewidth=1.8, label=label)
    for split, (colour, marker) in _STYLES.items():
        _eval_points(top, rows, split, SPLITS[split], colour, marker)
    panels.success(top, title or Path(metrics_path).absolute().parent.name)
    iterations, entropy = series(rows, "policy/entropy_mean")
    bottom.plot(iterations, entropy, color=_ENTROPY, alpha=0.25, linewidth=0.8)
    bottom.plot(iterations, smooth(entropy, window), color=_ENTROPY, linewidth=1.8, label="entropy")
    panels.entropy(bottom)
    _alpha_band(bottom, rows)
    panels.iterations(bottom)
    panels.save(figure, png_path)


def _eval_points(
    axes: Axes, rows: Sequence[Mapping[str, Any]], split: str, label: str, colour: str, marker: str
) -> None:
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


def _alpha_band(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
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


def group(words: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the metrics files of each group.

    A word is a run directory, a metrics file or a pattern; LABEL= before one puts it and those that follow, up to the
    next label, into one group. Without a label the directory's name says the method.

    Raises:
      ValueError: if a word leads to no metrics.
    """
    groups: dict[str, list[Path]] = {}
    label = ""
    for word in words:
        files = _metrics_files(word)
        # A shell expands LABEL=runs/a_* only when files are so named, so paths after a label belong to it.
        name, has_label, path = word.partition("=")
        if not files and has_label and "/" not in name:
            label, files = name, _metrics_files(path)
        if not files:
            raise ValueError(f"no metrics at {word}")
        if label:
            groups.setdefault(label, []).extend(files)
            continue
        by_directory = {file.parent: file for file in files}
        for method, directories in outcomes.by_method(by_directory).items():
            groups.setdefault(method, []).extend(by_directory[directory] for directory in directories)
    return groups


def _metrics_files(path: str) -> list[Path]:
    place = Path(path)
    found = [place]
    if not place.exists() and set(path) & set("*?["):
        root = Path(place.anchor)
        found = sorted(root.glob(str(place.relative_to(root))))
    files = [file / "metrics.jsonl" if file.is_dir() else file for file in found]
    return files if all(file.is_file() for file in files) else []


def table(groups: Mapping[str, Sequence[Path]], *, baseline: str = "") -> str:
    """Returns the Markdown tables of the last evaluations: of each group, and its distance from the baseline."""
    runs = {label: [outcomes.read(path.parent) for path in paths] for label, paths in groups.items()}
    text = ablation_table.markdown(runs)
    if baseline:
        seeds = {
            label: [outcomes.method_and_seed(path.parent)[1] for path in groups[label]] for label in groups
        }
        by_seed = {
            label: {seed: one for seed, one in zip(seeds[label], some, strict=True) if seed is not None}
            for label, some in runs.items()
        }
        text += "\n" + ablation_table.against(by_seed, baseline=baseline)
    return text


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="RUN", help="run directory or metrics.jsonl, or LABEL=PATH for a group")
    add("--runs", action="append", default=[], help="the same, as an option; a pattern in quotes is expanded")
    add("--out", default="", help="PNG to write; plot.png in the run, or beside the runs, by default")
    add("--split", default="valid_seen", help="evaluation split of a comparison")
    add("--baseline", default="", help="method that the others are compared with, seed by seed")
    options = parser.parse_args(argv)
    try:
        groups = group([*options.words, *options.runs])
        paths = [path for some in groups.values() for path in some]
        if not paths:
            parser.error("name a run, or several")
        if len(paths) == 1:
            out = Path(options.out) if options.out else paths[0].parent / "plot.png"
            plot_run(paths[0], out)
        else:
            out = Path(options.out) if options.out else paths[0].parent.parent / "plot.png"
            plot_methods(groups, out, split=options.split, baseline=options.baseline)
            text = table(groups, baseline=options.baseline)
            out.with_suffix(".md").write_text(text)
            print(text)
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(out)


if __name__ == "__main__":
    main()
