"""The credit of every response, as a composition: base advantage, then EMPG, then AEM, then who is trained on;
beside it, which responses are outliers.

Knows no model: entropies, surprisals and values come in as numbers of responses. Everything is in-graph, with no
gradient through it.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rl.credit import estimators, penalty
from rl.credit.aem import AemSettings, modulate
from rl.credit.empg import EmpgSettings, modulated
from rl.credit.outliers import Outliers, OutlierSettings, locate

SIGN_MASKS = ("none", "rising", "falling")


@dataclass(frozen=True)
class CreditSettings:
    """What the config says about credit; None switches a modulation or the localisation off."""

    estimator: estimators.EstimatorSettings
    penalty: str
    aem: AemSettings | None = None
    lam: float = 1.0
    empg: EmpgSettings | None = None
    sign_mask: str = "none"
    outliers: OutlierSettings | None = None

    def __post_init__(self) -> None:
        if self.penalty not in penalty.MODES:
            raise ValueError(f"unknown penalty={self.penalty!r}; known: {', '.join(penalty.MODES)}")
        if self.penalty == "response" and self.estimator.unit != "response":
            raise ValueError(
                'credit.penalty="response" gives each turn its own return; set credit.unit="response"'
            )
        # Step rewards hold the penalties, so what reads rewards has them already. GiGPO's A^E compares returns apart
        # from that: they may hold them too ("return", the paper's sum of rewards; "response", some stacks'), once in
        # each of the two levels. GAE compares no returns, so there these modes would silently do nothing.
        doubled = self.estimator.reads_rewards and self.penalty == "advantage"
        if doubled or (self.estimator.needs_value and self.penalty != "none"):
            raise ValueError(
                f"penalty={self.penalty!r} does not go with estimator={self.estimator.name!r}, whose step rewards "
                'hold the penalties already; set credit.penalty="none"'
            )
        if self.sign_mask not in SIGN_MASKS:
            raise ValueError(f"unknown sign_mask={self.sign_mask!r}; known: {', '.join(SIGN_MASKS)}")
        if self.sign_mask != "none" and self.aem is None:
            raise ValueError(
                f"sign_mask={self.sign_mask!r} reads AEM's coefficient; set credit.aem.enabled=True"
            )


class Credit(NamedTuple):
    """Arrays [R]; `threshold` is a scalar."""

    base: Array  # advantage before AEM (after EMPG)
    alpha: Array  # AEM's coefficient, 1 where it is off or silent
    advantage: Array  # what the loss uses
    target: Array  # what a value head should have said, 0 without one
    trained: Array  # bool, the responses that the loss sees
    normalised: Array  # STAPO's H_n; it and the next two are 0 and False where the localisation is off
    outlier: Array  # bool, STAPO's mask M
    extremity: Array  # how far beyond the nearer fence, negative below
    threshold: Array  # AEM's guard, the next call's `threshold`


def assign(
    responses: Any,
    entropy: Float[Array, " R"],
    surprisal: Float[Array, " R"],
    value: Float[Array, " R"],
    key: Any,
    threshold: Float[Array, ""],
    *,
    settings: CreditSettings,
) -> Credit:
    """Returns the credit of a response table (`rl.types.Responses`), in the order of its rows.

    A row without a finite outcome (with a critic: or value) is treated as not valid by every stage.
    """
    valid = responses.valid & jnp.isfinite(responses.outcome)
    if settings.estimator.needs_value:
        valid = valid & jnp.isfinite(value)
    responses = replace(responses, valid=valid)
    compared = penalty.compared_return(
        responses.outcome, responses.penalty, responses.trajectory, valid, mode=settings.penalty
    )
    table = replace(responses, outcome=compared)
    base = estimators.estimate(table, value, settings=settings.estimator)
    target = _target(table, value, settings.estimator)
    if settings.empg is not None:
        base = modulated(base, entropy, responses.trajectory, responses.turn, valid, settings=settings.empg)
    alpha = jnp.ones_like(base)
    if settings.aem is not None:
        modulation = modulate(
            entropy, surprisal, responses, jnp.float32(settings.lam), key, threshold, settings=settings.aem
        )
        alpha, threshold = modulation.alpha, modulation.threshold
    extra = penalty.added_advantage(responses.penalty, valid, mode=settings.penalty)
    trained = valid & sign_mask(base, alpha, kind=settings.sign_mask)
    located = Outliers(jnp.zeros_like(base), jnp.zeros_like(valid), jnp.zeros_like(base))
    if settings.outliers is not None:
        located = locate(entropy, responses.step_group, valid, settings=settings.outliers)
    return Credit(base, alpha, alpha * base + extra, target, trained, *located, threshold)


def _target(table: Any, value: Array, settings: estimators.EstimatorSettings) -> Array:
    """The return that GAE estimates: its advantage, before any scaling, plus the value."""
    if not settings.needs_value:
        return jnp.zeros_like(value)
    plain = estimators.estimate(table, value, settings=replace(settings, whiten=False))
    return jnp.where(table.valid, jax.lax.stop_gradient(value) + plain, 0)


def sign_mask(advantage: Float[Array, " R"], alpha: Float[Array, " R"], *, kind: str) -> Bool[Array, " R"]:
    """Returns the responses that push entropy one way by AEM's reading (AEM, analysis B).

    "rising": `A * (alpha - 1) < 0`; "falling": `> 0`; "none": all.
    """
    push = advantage * (alpha - 1)
    if kind == "rising":
        return push < 0
    if kind == "falling":
        return push > 0
    return jnp.ones(advantage.shape, bool)
