"""Metrics over iterations as arrays, of one run or of several."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Rows = Sequence[Mapping[str, Any]]  # of one run, as `rl.metrics.read` returns them


def series(rows: Rows, name: str) -> tuple[np.ndarray, np.ndarray]:
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


def window_of(count: int) -> int:
    """The window that a curve of `count` iterations is drawn with: odd, so that it has a centre, and at most 15."""
    return max(1, min(15, count // 6)) | 1


def over_runs(runs: Sequence[Rows], name: str, *, smoothed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns iterations [I] and values [I, runs] of one metric, each run smoothed by itself.

    Only iterations that every run has: a mean over fewer runs would jump where one ends.
    """
    by_iteration: dict[float, list[float]] = collections.defaultdict(list)
    for rows in runs:
        iterations, values = series(rows, name)
        for iteration, value in zip(
            iterations, smooth(values, window_of(len(values))) if smoothed else values
        ):
            by_iteration[iteration].append(value)
    whole = sorted(i for i, values in by_iteration.items() if len(values) == len(runs))
    return np.array(whole), np.array([by_iteration[i] for i in whole]).reshape(len(whole), len(runs))
