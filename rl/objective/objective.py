"""The loss of a micro-batch: surrogate, KL to the reference, entropy bonus, all under one aggregation.

Token arrays are aligned at the token they describe. Only tokens of valid responses are read: whatever stands
elsewhere (observations, prompts, padding, NaN) changes neither the loss nor its gradient.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.objective import aggregate, kl, surrogate
from rl.objective import value as value_term
from rl.objective.aggregate import Denominators

# What the ratio is taken against: the trainer's log-probabilities before the update, the sampler's own, or the current
# ones without gradient (on-policy: the ratio is 1).
OLD_LOGP = ("recomputed", "sampler", "current")

Metrics = dict[str, tuple[Array, Array]]  # name -> (numerator, denominator), each a sum over tokens


@dataclass(frozen=True)
class ObjectiveSettings:
    """What the config says about the loss; checked when built. 0 switches a term, a clip or a clamp off."""

    surrogate: str
    clip_low: float
    clip_high: float
    dual_clip: float
    ratio_clamp: float
    kl_coef: float
    kl_kind: str
    kl_input_clamp: float
    kl_output_clamp: float
    entropy_coef: float
    aggregation: str
    constant_length: float
    importance_cap: float  # truncates exp(logp_old - logp_sampler), the correction for another sampler
    importance_mask: float = (
        0.0  # drops responses whose mean ratio of the two samplers leaves [1 / mask, mask]
    )
    old_logp: str = "recomputed"
    value_coef: float = 0.0
    value_clip: float = 0.0

    def __post_init__(self):
        for field, known in (
            ("surrogate", surrogate.LOG_RATIOS),
            ("kl_kind", kl.KINDS),
            ("aggregation", aggregate.AGGREGATIONS),
            ("old_logp", OLD_LOGP),
        ):
            if getattr(self, field) not in known:
                raise ValueError(f"unknown {field}={getattr(self, field)!r}; known: {', '.join(known)}")
        if not 0 <= self.clip_low <= 1 or self.clip_high < 0:
            raise ValueError(
                f"clip_low={self.clip_low} must lie in [0, 1] and clip_high={self.clip_high} in [0, inf)"
            )
        if self.dual_clip != 0 and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(
                f"dual_clip={self.dual_clip} must be 0 (off) or above 1 + clip_high={1 + self.clip_high}"
            )
        if self.constant_length <= 0:
            raise ValueError(f"constant_length={self.constant_length} must be positive")
        clamps = ("ratio_clamp", "kl_input_clamp", "kl_output_clamp", "importance_cap")
        if 0 < self.importance_mask < 1:
            raise ValueError(f"importance_mask={self.importance_mask} must be 0 (off) or at least 1")
        for field in (*clamps, "value_coef", "value_clip", "importance_mask"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field}={getattr(self, field)} must not be negative; 0 = off")


def objective(
    logp: Float[Array, "B T"],
    entropy: Float[Array, "B T"],
    logp_old: Float[Array, "B T"],
    logp_ref: Float[Array, "B T"] | None,
    logp_sampler: Float[Array, "B T"] | None,
    advantage: Float[Array, " R"] | Float[Array, "B T"],
    response_id: Int[Array, "B T"],
    valid: Bool[Array, " R"],
    denominators: Denominators,
    values: tuple[Float[Array, "B T"], Float[Array, " R"], Float[Array, " R"]] | None = None,
    *,
    settings: ObjectiveSettings,
) -> tuple[Float[Array, ""], Metrics]:
    """Returns this micro-batch's share of the loss, and metrics as pairs to be added and divided.

    `logp` and `entropy` carry the gradient. `advantage` is per response, or per token. `denominators` are
    those of all micro-batches of the optimizer step (`aggregate.denominators`, `aggregate.add`): the shares
    then sum to the loss of the batch. `logp_ref` is needed with a KL term, `logp_sampler` with truncated
    importance weights; either may be given just to be reported. `values` are what a value head says at every
    token now, and what it said and should have said where each response begins.
    """
    if settings.kl_coef != 0 and logp_ref is None:
        raise ValueError(f"kl_coef={settings.kl_coef} needs logp_ref")
    if logp_sampler is None:
        for name in ("importance_cap", "importance_mask"):
            if getattr(settings, name) > 0:
                raise ValueError(f"{name}={getattr(settings, name)} needs logp_sampler")
        if settings.old_logp == "sampler":
            raise ValueError('old_logp="sampler" needs logp_sampler')
    mask = aggregate.token_mask(response_id, valid)
    logp, entropy, logp_old = (
        _wide(logp, mask),
        _wide(entropy, mask),
        _wide(jax.lax.stop_gradient(logp_old), mask),
    )
    if advantage.ndim == 1:
        advantage = aggregate.to_tokens(advantage, response_id, mask)
    advantage = jax.lax.stop_gradient(_wide(advantage, mask))
    weight = aggregate.weights(
        response_id,
        valid,
        denominators,
        aggregation=settings.aggregation,
        constant_length=settings.constant_length,
    )
    tokens = jnp.sum(mask).astype(jnp.float32)
    # shares of the loss are divided by the share of the tokens: over the batch these denominators sum to 1
    share = tokens / jnp.maximum(denominators.tokens, 1)
    metrics: Metrics = {}

    behaviour = logp_old
    if settings.old_logp == "sampler":
        assert logp_sampler is not None
        behaviour = _wide(jax.lax.stop_gradient(logp_sampler), mask)
    elif settings.old_logp == "current":
        behaviour = jax.lax.stop_gradient(logp)
    log_ratio = surrogate.LOG_RATIOS[settings.surrogate](
        logp, behaviour, response_id, denominators.lengths, mask
    )
    policy = surrogate.clipped(
        log_ratio,
        advantage,
        mask,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        ratio_clamp=settings.ratio_clamp,
    )
    policy_loss = policy.loss
    if logp_sampler is not None:
        sampler = _wide(jax.lax.stop_gradient(logp_sampler), mask)
        gap = logp_old - sampler
        metrics["objective/sampler_gap_mean"] = jnp.sum(jnp.abs(gap)), tokens
        if settings.importance_cap > 0:
            importance = truncated_importance(gap, cap=settings.importance_cap)
            policy_loss = policy_loss * importance
            truncated = mask & (importance >= settings.importance_cap)
            metrics["objective/importance_mean"] = jnp.sum(jnp.where(mask, importance, 0)), tokens
            metrics["objective/importance_truncated_fraction"] = (
                jnp.sum(truncated).astype(jnp.float32),
                tokens,
            )
        if settings.importance_mask > 0:
            mean_gap = surrogate.sequence_log_ratio(
                logp_old, sampler, response_id, denominators.lengths, mask
            )
            dropped = mask & (jnp.abs(mean_gap) > jnp.log(settings.importance_mask))
            policy_loss = jnp.where(dropped, 0, policy_loss)
            metrics["objective/importance_masked_fraction"] = jnp.sum(dropped).astype(jnp.float32), tokens
    policy_loss = jnp.sum(weight * policy_loss)
    loss = policy_loss
    metrics["objective/policy_loss"] = policy_loss, share

    if logp_ref is not None:
        divergence = kl.kl(
            logp,
            _wide(jax.lax.stop_gradient(logp_ref), mask),
            mask,
            kind=settings.kl_kind,
            input_clamp=settings.kl_input_clamp,
            output_clamp=settings.kl_output_clamp,
        )
        metrics["objective/kl_mean"] = jnp.sum(divergence), tokens
        if settings.kl_coef != 0:
            loss = loss + settings.kl_coef * jnp.sum(weight * divergence)
    metrics["objective/entropy_mean"] = jnp.sum(entropy), tokens
    if settings.entropy_coef != 0:
        loss = loss - settings.entropy_coef * jnp.sum(weight * entropy)

    if values is not None:
        first = value_term.starts(response_id, mask)
        said, old, target = values
        old, target = (aggregate.to_tokens(x, response_id, first) for x in (old, target))
        value_loss = value_term.value_loss(said, old, target, first, clip=settings.value_clip)
        value_loss = jnp.sum(value_loss) / jnp.maximum(denominators.responses, 1)
        loss = loss + settings.value_coef * value_loss
        metrics["objective/value_loss"] = value_loss, share

    drift = kl.kl(logp, logp_old, mask, kind="k3")
    metrics |= {
        "objective/loss": (loss, share),
        "objective/ratio_mean": (jnp.sum(policy.ratio), tokens),
        "objective/old_kl_mean": (jnp.sum(drift), tokens),
        "objective/clip_low_fraction": (jnp.sum(policy.clipped_low).astype(jnp.float32), tokens),
        "objective/clip_high_fraction": (jnp.sum(policy.clipped_high).astype(jnp.float32), tokens),
        "objective/clip_dual_fraction": (jnp.sum(policy.clipped_dual).astype(jnp.float32), tokens),
    }
    return loss, jax.lax.stop_gradient(metrics)


def truncated_importance(gap: Float[Array, "B T"], *, cap: float) -> Float[Array, "B T"]:
    """Returns `min(exp(gap), cap)` of `gap = logp_old - logp_sampler`, without gradient (Yao et al. 2025)."""
    # the gap is bounded before exp, so that the truncated side does not overflow
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(jnp.minimum(gap, 80.0)), cap))


def _wide(values, mask):
    """The values in float32 or wider, 0 outside the mask before any arithmetic, so NaN cannot leak."""
    return jnp.where(mask, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0)
