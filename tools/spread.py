"""Mean, deviation and 95 % interval of a few numbers, such as one for each seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit  # scipy comes with jax


@dataclasses.dataclass(frozen=True)
class Spread:
    """In the unit of the values. NaN stands for what too few values cannot say."""

    n: int
    mean: float  # NaN without a value
    deviation: float  # of the sample, divided by n - 1; NaN below two values
    low: float  # the interval's ends; NaN below two values
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Returns mean, sample deviation and Student's 95 % interval of the mean.

    Student, "The probable error of a mean", Biometrika 6 (1908).
    """
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return Spread(n, mean, math.nan, math.nan, math.nan)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n) * deviation / math.sqrt(n)
    return Spread(n, mean, deviation, mean - half, mean + half)


def band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mean, low and high of `spread` for each row of `values` [I, n]; with one column the ends are the mean."""
    n = values.shape[1]
    mean = values.mean(1)
    half = t_quantile(n) * values.std(1, ddof=1) / math.sqrt(n) if n > 1 else np.zeros_like(mean)
    return mean, mean - half, mean + half


def t_quantile(n: int) -> float:
    """The 97.5 % quantile of Student's t for the mean of `n` values, n > 1: 12.71 for two, 1.96 for many."""
    return float(stdtrit(n - 1, 0.975))
