"""STAPO's localisation: the responses whose entropy is an outlier among those of the batch (STAPO, section 3.2).

Entropies are made comparable within a step group, the responses that left the same state, and then held against
Tukey's fences over the batch. Only which responses; what is added at them is the objective's business. Like AEM it
reads the mean entropy of a response's tokens under the old policy, knows no model, and no gradient flows through it.

Rows that are not valid, and rows whose entropy is not finite, enter no statistic and are never located.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.credit import grouped

LOCALISATIONS = ("normalised", "shannon", "all")
SINGLETONS = ("raw", "inlier")


@dataclass(frozen=True)
class OutlierSettings:
    """What the config says about the localisation; checked when built."""

    localisation: str
    fence: float  # distance of the fences from the quartiles, in interquartile ranges
    singleton: str
    ddof: int
    eps: float

    def __post_init__(self):
        if self.localisation not in LOCALISATIONS:
            raise ValueError(f"unknown localisation={self.localisation!r}; known: {', '.join(LOCALISATIONS)}")
        if self.singleton not in SINGLETONS:
            raise ValueError(f"unknown singleton={self.singleton!r}; known: {', '.join(SINGLETONS)}")
        if not math.isfinite(self.fence) or min(self.fence, self.ddof, self.eps) < 0:
            raise ValueError(
                f"fence={self.fence}, ddof={self.ddof}, eps={self.eps} must be finite and not negative"
            )


class Outliers(NamedTuple):
    normalised: Array  # [R], H_n, in deviations of the step group (nats in a raw group of one)
    outlier: Array  # [R] bool, M
    extremity: Array  # [R], how far beyond the nearer fence, negative below; with "all" from the median


def locate(
    entropy: Float[Array, " R"],
    step_group: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    settings: OutlierSettings,
) -> Outliers:
    """Returns which responses are located (STAPO, equations 2 and 3), and what decides it.

    "normalised" fences in `H_n`, "shannon" the entropies themselves; "all" locates every response with a finite
    entropy, fences in none, and measures the extremity in `H_n`. Step group ids lie in `[0, R)`.
    """
    entropy = jax.lax.stop_gradient(grouped.wide(entropy))
    known = grouped.inside(step_group, valid & jnp.isfinite(entropy), num_segments=step_group.shape[0])
    normalised, compared = normalise(
        entropy, step_group, known, singleton=settings.singleton, ddof=settings.ddof, eps=settings.eps
    )
    if settings.localisation == "all":
        middle = grouped.quantile(normalised, compared, level=0.5)
        return Outliers(normalised, known, jnp.where(known, normalised - middle, 0))
    if settings.localisation == "shannon":
        extremity = beyond(entropy, known, fence=settings.fence)
    else:
        extremity = beyond(normalised, compared, fence=settings.fence)
    return Outliers(normalised, extremity != 0, extremity)


def normalise(
    entropy: Float[Array, " R"],
    step_group: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    singleton: str = "raw",
    ddof: int = 1,
    eps: float = 1e-6,
) -> tuple[Float[Array, " R"], Bool[Array, " R"]]:
    """Returns `H_n = (H - mean) / (std + eps)` of each step group, and which rows can be outliers in it.

    Exactly 0 in a step group of equal entropies. A step group of one has mean 0 and deviation 1 with
    `singleton="raw"`, so that `H_n` is `H`; with "inlier" it has 0 and cannot be an outlier. Valid rows have finite
    entropies.
    """
    num_segments = step_group.shape[0]
    mean = grouped.mean(entropy, step_group, valid, num_segments=num_segments)
    std = grouped.std(entropy, step_group, valid, num_segments=num_segments, ddof=ddof)
    count = grouped.count(step_group, valid, num_segments=num_segments)
    here = grouped.rows(std, step_group, valid)
    # Not over eps alone: two responses that differ have no deviation with ddof 2, nor where squares underflow.
    unequal = here > 0
    distance = jnp.where(unequal, entropy - grouped.rows(mean, step_group, valid), 0)
    result = distance / jnp.where(unequal, here + eps, 1)
    alone = grouped.rows(count, step_group, valid) == 1
    if singleton == "raw":
        return jnp.where(alone, entropy, result), valid
    if singleton == "inlier":
        return result, valid & ~alone
    raise ValueError(f"unknown {singleton=}; known: {', '.join(SINGLETONS)}")


def beyond(value: Float[Array, " R"], counted: Bool[Array, " R"], *, fence: float) -> Float[Array, " R"]:
    """Returns how far each counted value lies outside Tukey's fences, negative below, 0 inside and elsewhere.

    The fences are `[Q1 - fence * (Q3 - Q1), Q3 + fence * (Q3 - Q1)]`, the quartiles those of the counted values by
    linear interpolation.
    """
    low, high = (grouped.quantile(value, counted, level=level) for level in (0.25, 0.75))
    reach = fence * (high - low)
    value = jnp.where(counted, value, low)
    return jnp.minimum(value - (low - reach), 0) + jnp.maximum(value - (high + reach), 0)
