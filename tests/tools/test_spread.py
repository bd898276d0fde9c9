"""Student's interval: literal numbers, and what too few values cannot say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tools.spread import band, spread, t_quantile


def test_numbers() -> None:
    """Mean 5, deviation sqrt(32 / 7), t(7) = 2.364624."""
    found = spread([2, 4, 4, 4, 5, 5, 7, 9])
    assert found.n == 8
    assert (found.mean, found.deviation) == (5.0, pytest.approx(2.138090))
    assert (found.low, found.high) == (pytest.approx(3.212513, abs=1e-6), pytest.approx(6.787487, abs=1e-6))


def test_quantiles() -> None:
    assert [t_quantile(n) for n in (2, 3, 5)] == pytest.approx([12.706205, 4.302653, 2.776445], abs=1e-5)


def test_too_few() -> None:
    assert math.isnan(spread([]).mean)
    one = spread([0.5])
    assert (one.n, one.mean) == (1, 0.5) and math.isnan(one.deviation) and math.isnan(one.low)
    assert spread([0.5, 0.5, 0.5]).low == 0.5


def test_band_is_the_spread_of_each_row() -> None:
    values = np.array([[0.1, 0.4, 0.4], [1.0, 1.0, 1.0]])
    mean, low, high = band(values)
    for row, *ends in zip(values, mean, low, high):
        assert ends == pytest.approx([spread(row).mean, spread(row).low, spread(row).high])
    assert [part.tolist() for part in band(values[:, :1])] == [[0.1, 1.0]] * 3
