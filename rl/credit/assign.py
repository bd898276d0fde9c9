"""The credit of every response, as a composition: base advantage, then EMPG, then AEM, then who is trained on.

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

SIGN_MASKS = ("none", "rising", "falling")


@dataclass(frozen=True)
class CreditSettings:
    """What the config says about credit; None switches a modulation off."""

    estimator: estimators.EstimatorSettings
    penalty: str
    aem: AemSettings | None = None
    lam: float = 1.0
    empg: EmpgSettings | None = None
    sign_mask: str = "none"

    def __post_init__(self) -> None:
        if self.penalty not in penalty.MODES:
            raise ValueError(f"unknown penalty={self.penalty!r}; known: {', '.join(penalty.MODES)}")
        if self.penalty == "response" and self.estimator.unit != "response":
            raise ValueError(
                'credit.penalty="response" gives each turn its own return; set credit.unit="response"'
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
    """Returns the credit of a response table (`rl.types.Responses`), in the order of its rows."""
    valid = responses.valid
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
    return Credit(base, alpha, alpha * base + extra, target, trained, threshold)


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
