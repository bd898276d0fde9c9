"""The pure functions that the learner jits: scores and gradient of a micro-batch, and an optimizer step."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from model import scoring, value_head
from model.config import ModelConfig
from rl.credit import aem
from rl.credit.assign import CreditSettings
from rl.objective import aggregate, kl
from rl.objective import value as value_objective
from rl.objective.attribution import Attribution, AttributionSettings, attribution
from rl.objective.objective import ObjectiveSettings, objective
from rl.types import Blind, Scores, Tokens


@struct.dataclass
class TrainState:
    """What an update changes, and the frozen reference. Weights are float32 whatever the model computes in."""

    params: Any
    optimizer: Any
    step: Any  # optimizer steps taken, int32
    threshold: Any  # AEM's adaptive threshold so far, NaN before the first
    reference: Any  # params of the reference of the KL terms, or None without one


@dataclasses.dataclass(frozen=True)
class LearnerSettings:
    """What of the config shapes the three stages."""

    credit: CreditSettings
    first_k: int  # tokens of a response whose entropy counts; 0 = all
    objective: ObjectiveSettings
    temperature: float  # of the rollout: scores describe the distribution that was sampled from
    epochs: int
    block: int
    remat: str
    denominator: str = "batch"
    attribution: AttributionSettings = dataclasses.field(default_factory=AttributionSettings)

    def __post_init__(self):
        if self.attribution.enabled and self.credit.outliers is None:
            raise ValueError("attribution acts at located responses; set credit.outliers.enabled=True")

    @property
    def needs_reference(self) -> bool:
        return self.objective.kl_coef != 0 or self.attribution.penalty_coef != 0


def forward(
    params: Any, rows: Tokens, *, config: ModelConfig, settings: LearnerSettings
) -> tuple[Any, Any, Any, Any]:
    """(logp, entropy, value or None, [B, T] each, and the activations that predict the tokens, [B, T, D])."""
    hidden, mask = scoring.predicting(
        params,
        rows.tokens,
        rows.positions,
        rows.segments,
        rows.response_id >= 0,
        config=config,
        remat=settings.remat,
    )
    logp, entropy = scoring.score_hidden(
        params, hidden, rows.tokens, mask, temperature=settings.temperature, block=settings.block
    )
    return logp, entropy, value_head.values(params, hidden) if config.value_head else None, hidden


def score(
    params: Any, rows: Tokens, *, config: ModelConfig, settings: LearnerSettings, size: int
) -> tuple[Scores, tuple[jax.Array, jax.Array, jax.Array]]:
    logp, entropy, value, _ = forward(params, rows, config=config, settings=settings)
    mean = functools.partial(
        aem.response_mean, response_id=rows.response_id, num_responses=size, first_k=settings.first_k
    )
    first = jnp.zeros(size, jnp.float32)
    if value is not None:
        starts = value_objective.starts(rows.response_id, rows.response_id >= 0)
        ids = jnp.where(starts, rows.response_id, size)  # out of range: dropped
        first = first.at[ids.ravel()].add(jnp.where(starts, value, 0).ravel(), mode="drop")
    return Scores(logp, entropy), (mean(entropy), mean(-logp), first)


def gradient(
    params: Any,
    total: Any,
    rows: Tokens,
    logp_old: Any,
    logp_ref: Any,
    advantage: Any,
    values: tuple[Any, Any],
    trained: Any,
    counts: aggregate.Denominators,
    blind: Blind | None,
    reference: Any,
    *,
    config: ModelConfig,
    settings: LearnerSettings,
) -> tuple[Any, Any, Attribution | None]:
    def loss(params: Any) -> tuple[jax.Array, Any]:
        logp, entropy, value, hidden = forward(params, rows, config=config, settings=settings)
        lost, metrics = objective(
            logp,
            entropy,
            logp_old,
            logp_ref,
            rows.logp_sampler,
            advantage,
            rows.response_id,
            trained,
            counts,
            None if value is None else (value, *values),
            settings=settings.objective,
        )
        if blind is None:
            return lost, (metrics, None)
        terms = selective(params, reference, hidden, blind, trained, counts, config=config, settings=settings)
        return lost + terms.loss, (metrics, terms)

    grads, (metrics, terms) = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(jnp.add, total, grads), metrics, terms


def selective(
    params: Any,
    reference: Any,
    hidden: Any,
    blind: Blind,
    trained: Any,
    counts: aggregate.Denominators,
    *,
    config: ModelConfig,
    settings: LearnerSettings,
) -> Attribution:
    """STAPO's terms of a block: the blind pass is run, the full one is there already."""
    terms, scale = settings.attribution, {"temperature": settings.temperature, "block": settings.block}
    predict = functools.partial(
        scoring.predicting,
        tokens=blind.tokens,
        positions=blind.positions,
        segments=blind.segments,
        mask=blind.response_id >= 0,
        config=config,
        remat=settings.remat,
    )
    masked, mask = predict(params)

    def between(p: Any, q: Any) -> Any:
        if terms.kind == "full":
            return scoring.divergence(p, q, mask, **scale)
        logp, other = (
            scoring.score_hidden(weights, hidden, blind.tokens, mask, **scale)[0]
            for weights, hidden in (p, q)
        )
        return kl.kl(logp, other, mask, kind=terms.kind)

    def stopped(side: Any, stop: bool) -> Any:
        return jax.lax.stop_gradient(side) if stop else side

    independent = jnp.zeros(blind.tokens.shape, jnp.float32)
    full = params, hidden[blind.row, blind.column]
    aware = between(
        stopped(full, terms.stop_gradient_full), stopped((params, masked), terms.stop_gradient_masked)
    )
    if terms.penalty_coef:
        reference = jax.lax.stop_gradient(reference)
        independent = between((params, masked), (reference, predict(reference)[0]))
    return attribution(aware, independent, blind.response_id, trained, counts, settings=terms)


def apply(
    state: TrainState, grads: Any, *, tx: optax.GradientTransformation
) -> tuple[TrainState, dict[str, Any]]:
    updates, optimizer = tx.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    norms = {
        "optimizer/gradient_norm": optax.tree.norm(grads),
        "optimizer/update_norm": optax.tree.norm(updates),
    }
    return dataclasses.replace(state, params=params, optimizer=optimizer, step=state.step + 1), norms
