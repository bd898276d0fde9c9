"""Curves: windows, and means over the iterations that all runs have."""

from __future__ import annotations

import numpy as np

from tools.curves import over_runs, series, smooth, window_of


def test_series() -> None:
    iterations, values = series(
        [{"iteration": 0}, {"iteration": 1, "a": 2}, {"iteration": 3, "a": None}], "a"
    )
    assert (iterations.tolist(), values.tolist()) == ([1.0], [2.0])


def test_smooth() -> None:
    np.testing.assert_allclose(smooth(np.array([0.0, 3.0, 6.0, 9.0]), 3), [1.5, 3.0, 6.0, 7.5])
    np.testing.assert_allclose(smooth(np.array([1.0, 2.0]), 1), [1.0, 2.0])
    assert smooth(np.array([]), 5).size == 0
    assert [window_of(n) for n in (0, 5, 12, 20, 1000)] == [1, 1, 3, 3, 15]


def test_over_runs() -> None:
    runs = [[{"iteration": i, "a": i + add} for i in range(count)] for add, count in ((0, 3), (10, 2))]
    iterations, values = over_runs(runs, "a", smoothed=True)
    assert (iterations.tolist(), values.tolist()) == ([0, 1], [[0, 10], [1, 11]])
    iterations, values = over_runs(runs, "b", smoothed=False)
    assert (iterations.shape, values.shape) == ((0,), (0, 2))
