"""The tables and the figure of `tools.outlier_report`. Numbers come as {name: value}, a mean as (mean, low, high)."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from tools import panels
from tools.curves import smooth, window_of

_NOTE = (
    "Means with 95 % bootstrap intervals over episodes (success: Wilson's). Outliers: entropy outside Tukey's fences, "
    "normalised within step groups as the run does it, or by the defaults where it locates none. Advantage: the one "
    "before AEM. KL: from the full to the blind context, mean over a response's tokens. Attribution: share of the "
    "context's |gradient x input| that lies on goal and history; held: their share of its tokens (tools/reliance.py)."
)
Statistics = Mapping[str, Any]
# part -> marker; "all" only where it is measured
_MARKS = {"all": "o", "outlier": "x", "inlier": "."}


def tables(
    trained: Mapping[str, Mapping[str, Statistics]], tested: Sequence[Statistics]
) -> list[tuple[str, list[list[str]]]]:
    """(title, rows of cells, the first of them the head); `trained` is {run: {iterations: statistics}}."""
    out = [
        (
            "Training records: all iterations, the first tenth, the last tenth",
            [
                ["run", "iterations", "responses", "outliers, %", "low / high entropy, %"]
                + ["advantage of outliers", "of inliers", "R_TA of outliers"],
                *(
                    [run, period, str(some["responses"]), share(some["outlier_share"]), split(some)]
                    + [
                        mean(some[name])
                        for name in ("advantage_outlier", "advantage_inlier", "aware_outlier")
                    ]
                    for run, periods in trained.items()
                    for period, some in periods.items()
                ),
            ],
        )
    ]
    if not tested:
        return out
    one = tested[0]
    where = f"{one['split']}, {one['games']} games x {one['members']} episodes, sampled as in training"
    names = [[some["run"], str(some["step"])] for some in tested]
    located = [
        [share(some["success"]), str(some["responses"]), mean(some["entropy_all"])]
        + [share(some["outlier_share"]), split(some)]
        for some in tested
    ]
    relied = [
        [mean(some[f"kl_{part}"]) for part in _MARKS]
        + [mean(some[f"attribution_{part}"]) for part in _MARKS]
        + [mean(some["held_all"])]
        for some in tested
    ]
    heads = (
        ["success, %", "responses", "H, nats", "outliers, %", "low / high entropy, %"],
        ["KL, nats", "of outliers", "of inliers", "attribution", "of outliers", "of inliers", "held"],
    )
    for title, head, rows in zip(("Test time", "Reliance on goal and history"), heads, (located, relied)):
        cells = [["run", "step", *head], *([*name, *row] for name, row in zip(names, rows))]
        out.append((f"{title}: {where}", cells))
    return out


def markdown(made: Sequence[tuple[str, list[list[str]]]]) -> str:
    lines = []
    for title, (head, *rows) in made:
        lines += [f"## {title}", "", f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
    return "\n".join([*lines, _NOTE, ""])


def rich_table(title: str, cells: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(cells[0]):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in cells[1:]:
        table.add_row(*row)
    return table


def share(triple: tuple[float, float, float]) -> str:
    """A share with its interval in percent."""
    return mean(tuple(100 * x for x in triple), form=".1f")


def mean(triple: Sequence[float], *, form: str = ".3g") -> str:
    middle, low, high = triple
    if not math.isfinite(middle):
        return "-"
    return f"{middle:{form}}" + (f" [{low:{form}}, {high:{form}}]" if math.isfinite(low) else "")


def split(some: Statistics) -> str:
    """How the outliers divide; "all" as localisation may hold some at the median, which are neither."""
    count = some["outliers"]
    return f"{100 * some['low'] / count:.0f} / {100 * some['high'] / count:.0f}" if count else "-"


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A column a number: a triple becomes three. What is not known stays empty."""
    flat = []
    for row in rows:
        line: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, tuple):
                line |= {name: value[0], f"{name}_low": value[1], f"{name}_high": value[2]}
            else:
                line[name] = value
        flat.append({k: "" if isinstance(v, float) and not np.isfinite(v) else v for k, v in line.items()})
    with path.open("w", newline="", encoding="utf-8") as file:
        # The default line ends make csv quote \r and \n within an action; a shorter end leaves \r bare.
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in flat for name in row)))
        writer.writeheader()
        writer.writerows(flat)


def draw(
    trained: Mapping[str, Mapping[int, Statistics]],
    windows: Mapping[str, Mapping[float, Statistics]],
    tested: Sequence[Statistics],
    path: Path,
    *,
    title: str,
) -> None:
    """Draws shares, their split and advantages over iterations, and reliance at the checkpoints.

    Args:
      trained: {run: {iteration: statistics}}.
      windows: the same over several iterations each, by their centre; intervals cannot be smoothed.
      tested: of the checkpoints.
    """
    figure = plt.figure(figsize=(11, 7.4), layout="constrained")
    grid = figure.add_gridspec(2, 4)
    shares, sides = figure.add_subplot(grid[0, :2]), figure.add_subplot(grid[0, 2:])
    advantages = figure.add_subplot(grid[1, :2] if tested else grid[1, :])
    for number, (run, found) in enumerate(trained.items()):
        at = np.array(sorted(found))
        colour, window = f"C{number}", window_of(len(at))
        rows = [found[i] for i in at]
        total = np.array([row["responses"] for row in rows])
        values = np.array([row["outliers"] for row in rows]) / total
        shares.plot(at, values, color=colour, alpha=0.25, linewidth=0.8)
        shares.plot(at, smooth(values, window), color=colour, label=run)
        for side, line in (("high", "-"), ("low", ":")):
            values = smooth(np.array([row[side] for row in rows]) / total, window)
            sides.plot(at, values, line, color=colour, label=f"{run}, {side} entropy")
        for part, line, marker in (("outlier", "-", "x"), ("inlier", "--", "o")):
            known = {
                at: some[f"advantage_{part}"]
                for at, some in windows[run].items()
                if math.isfinite(some[f"advantage_{part}"][0])
            }
            places, triples = np.array(list(known)), np.array(list(known.values())).reshape(-1, 3)
            middle = triples[:, 0]
            error = np.nan_to_num(np.abs(triples[:, 1:].T - middle))
            advantages.errorbar(
                places + 0.008 * len(at) * (2 * number - len(trained) + 1), middle, yerr=error, fmt=f"{marker}{line}",
                color=colour, markersize=4, capsize=2, linewidth=1.2, label=f"{run}, {part}s",
            )  # fmt: skip
    advantages.axhline(0, color="0.6", linewidth=0.8)
    named = (
        (shares, "share of outlier steps"),
        (sides, "share of steps: outliers with too much and too little entropy"),
        (advantages, "advantage before AEM, 95 % interval"),
    )
    for axes, name in named:
        _label(axes, name)
        panels.iterations(axes)
    for axes in (shares, sides):
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if tested:
        for place, (name, words) in enumerate(
            (("kl", "KL, full to blind context, nats"), ("attribution", "attribution of goal, history"))
        ):
            axes = figure.add_subplot(grid[1, 2 + place])
            _reliance(axes, tested, name, list(trained), legend=not place)
            _label(axes, words, legend=not place)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    panels.save(figure, path)


def _reliance(
    axes: Axes, tested: Sequence[Statistics], name: str, runs: Sequence[str], *, legend: bool
) -> None:
    """A point and an interval a checkpoint and part, a colour a run."""
    for place, some in enumerate(tested):
        colour = f"C{runs.index(some['run'])}"
        for offset, (part, marker) in enumerate(_MARKS.items()):
            middle, low, high = some[f"{name}_{part}"]
            if not math.isfinite(middle):
                continue
            x = place + 0.22 * (offset - 1)
            if math.isfinite(low):
                axes.plot([x, x], [low, high], color=colour, linewidth=1)
            axes.plot(x, middle, marker, color=colour, markersize=7)
    if legend:
        for part, marker in _MARKS.items():
            axes.plot([], [], marker, color="0.4", label=part)
    axes.set_xticks(range(len(tested)), [str(some["step"]) for some in tested])
    axes.set_xlim(-0.6, len(tested) - 0.4)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.set_xlabel("checkpoint")


def _label(axes: Axes, title: str, *, legend: bool = True) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    if legend:
        axes.legend(frameon=False, fontsize=8)
    panels.dress(axes)
