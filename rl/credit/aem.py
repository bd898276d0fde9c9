"""AEM: adaptive entropy modulation of response advantages (AEM, section 4.2 and algorithm 1).

The modulation reads one number per response, the mean entropy of its tokens under the old policy, and returns
one coefficient per response whose mean over the scope is 1. Confident responses get more than 1, uncertain
ones less. Any base advantage is multiplied by it. No gradient flows through it, and it knows no model.

The scope is the set `G` of the paper's steps 2, 4 and 5 alike: minimum, maximum, guard threshold and the mean
that calibrates are all taken over the same valid responses, those of one task draw ("group", the paper's), of
one trajectory, or of the batch. So the mean of alpha is 1 over the scope in every variant, and a trajectory
of one response, or of near-equal ones, keeps its base advantage. Responses count once each, whatever their
length.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from rl.credit import grouped

SCOPES = ("group", "trajectory", "batch")
PROXIES = ("entropy", "surprisal", "mix")


@dataclass(frozen=True)
class AemSettings:
    """What the config says about the modulation; checked when built. The extensions are off at None or 0."""

    threshold: float  # nats; a scope whose range is smaller is left alone
    scope: str
    reverse: bool
    shuffle: bool
    proxy: str
    mix: float  # share of surprisal in the proxy "mix"
    quantile: float | None = None  # threshold = this quantile of the scopes' ranges instead
    quantile_decay: float = 0.0  # weight of the previous threshold when it is adaptive; 0 = this batch only
    noise_variance: float = 0.0  # variance of a return under the environment's own noise; scales lam down
    eps: float = 1e-8

    def __post_init__(self):
        if self.scope not in SCOPES:
            raise ValueError(f"unknown scope={self.scope!r}; known: {', '.join(SCOPES)}")
        if self.proxy not in PROXIES:
            raise ValueError(f"unknown proxy={self.proxy!r}; known: {', '.join(PROXIES)}")
        for name in ("mix", "quantile", "quantile_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must lie in [0, 1]")
        if self.threshold < 0 or self.noise_variance < 0 or self.eps < 0:
            raise ValueError(
                f"threshold={self.threshold}, noise_variance={self.noise_variance}, eps={self.eps} "
                "must not be negative"
            )


class Modulation(NamedTuple):
    alpha: Array  # [R], 1 in rows that are not valid
    proxy: Array  # [R], nats per token: what alpha was computed from
    lam: Array  # [R], after scaling by environment noise
    threshold: Array  # [], nats: the guard that was used; the next call's `previous`


def modulate(
    entropy: Float[Array, " R"],
    surprisal: Float[Array, " R"],
    table: Any,
    lam: Float[Array, ""],
    key: Key[Array, ""] | UInt32[Array, "2"] | None = None,
    previous: Float[Array, ""] | None = None,
    *,
    settings: AemSettings,
) -> Modulation:
    """Returns the coefficients with every switch of the config applied.

    `entropy` and `surprisal` are response means (`response_mean` of the old policy's token entropies and of
    its `-logp`). `table` has the response arrays outcome, group, trajectory and valid as attributes. `lam`
    may follow a schedule. `key` is needed by `shuffle` only, `previous` by an adaptive threshold with a decay
    (NaN at the start).
    """
    group, trajectory, valid = table.group, table.trajectory, table.valid
    value = proxy(entropy, surprisal, kind=settings.proxy, mix=settings.mix)
    threshold = jnp.asarray(settings.threshold, value.dtype)
    if settings.quantile is not None:
        threshold = adaptive_threshold(
            value,
            group,
            trajectory,
            valid,
            previous,
            scope=settings.scope,
            quantile=settings.quantile,
            decay=settings.quantile_decay,
        )
    lam = jnp.broadcast_to(lam, group.shape)
    if settings.noise_variance > 0:
        share = noise_share(table.outcome, group, trajectory, valid, noise_variance=settings.noise_variance)
        lam = lam * (1 - share)
    alpha = modulation(
        value,
        group,
        trajectory,
        valid,
        key,
        scope=settings.scope,
        lam=lam,
        threshold=threshold,
        reverse=settings.reverse,
        shuffle=settings.shuffle,
        eps=settings.eps,
    )
    return Modulation(alpha, value, lam, threshold)


def response_mean(
    values: Float[Array, "B T"], response_id: Int[Array, "B T"], *, num_responses: int, first_k: int = 0
) -> Float[Array, " R"]:
    """Returns the mean of `values` over each response's tokens (step 1), 0 for a response without tokens.

    `first_k` > 0 counts only the first k tokens of each. Tokens outside every response (`response_id` -1)
    have no effect, NaN or not. A response is one contiguous span of one row, so the results of micro-batches
    can be added.
    """
    num_rows, num_tokens = values.shape
    column = jnp.broadcast_to(jnp.arange(num_tokens), (num_rows, num_tokens)).ravel()
    ids, values = response_id.ravel(), values.ravel()
    counted = grouped.inside(ids, jnp.ones(ids.shape, bool), num_segments=num_responses)
    if first_k > 0:
        start = jax.ops.segment_min(
            column, jnp.where(counted, ids, num_responses), num_segments=num_responses
        )
        counted = counted & (column - start[jnp.where(counted, ids, 0)] < first_k)
    size = grouped.count(ids, counted, num_segments=num_responses)
    return grouped.total(values, ids, counted, num_segments=num_responses) / jnp.maximum(size, 1)


def proxy(
    entropy: Float[Array, " R"], surprisal: Float[Array, " R"], *, kind: str, mix: float = 0.5
) -> Float[Array, " R"]:
    """Returns what stands for a response's uncertainty: its entropy (the paper's), its surprisal, or a mix.

    The mix is `(1 - mix) * entropy + mix * surprisal`, all per token, in nats. Entropy is the predictable
    part of surprisal (Doob, appendix F.4).
    """
    if kind == "entropy":
        return entropy
    if kind == "surprisal":
        return surprisal
    if kind == "mix":
        return (1 - mix) * entropy + mix * surprisal
    raise ValueError(f"unknown proxy {kind=}; known: {', '.join(PROXIES)}")


def modulation(
    entropy: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    key: Key[Array, ""] | UInt32[Array, "2"] | None = None,
    *,
    scope: str = "group",
    lam: float | Float[Array, ""] | Float[Array, " R"] = 1.0,
    threshold: float | Float[Array, ""] = 0.1,
    reverse: bool = False,
    shuffle: bool = False,
    eps: float = 1e-8,
) -> Float[Array, " R"]:
    """Returns alpha, the coefficient of each response's advantage (steps 2 to 5); 1 in rows not valid.

    With `H` min-max normalised to [0, 1] over the scope, alpha is `exp(-lam * H)` over its mean in the scope,
    and 1 for a whole scope whose range of `entropy` is below `threshold`. `reverse` flips the sign of `lam`.
    `shuffle` permutes alpha within each group, whatever the scope, by `key`. Group and trajectory ids lie in
    `[0, R)`; trajectory ids are unique over the batch.
    """
    entropy = jax.lax.stop_gradient(grouped.wide(entropy))
    ids = _scope_ids(group, trajectory, scope)
    num_segments = ids.shape[0]
    valid = grouped.inside(ids, valid, num_segments=num_segments)

    low = grouped.minimum(entropy, ids, valid, num_segments=num_segments)
    spread = grouped.maximum(entropy, ids, valid, num_segments=num_segments) - low
    spread_here = grouped.rows(spread, ids, valid)
    height = jnp.where(valid, entropy - grouped.rows(low, ids, valid), 0)
    # spread + eps is 0 only with eps = 0 in a scope of equal entropies, where height is 0 too
    normalised = height / jnp.where(spread_here + eps > 0, spread_here + eps, 1)

    raw = jnp.exp((lam if reverse else -lam) * normalised)
    calibration = grouped.mean(raw, ids, valid, num_segments=num_segments)
    alpha = raw / jnp.where(valid, grouped.rows(calibration, ids, valid) + eps, 1)
    alpha = jnp.where(valid & (spread_here >= threshold), alpha, 1)
    if shuffle:
        if key is None:
            raise ValueError("shuffle=True needs a key")
        alpha = _shuffled(alpha, group, valid, key)
    return jax.lax.stop_gradient(alpha)


def scope_ranges(
    entropy: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    scope: str = "group",
) -> tuple[Float[Array, " R"], Bool[Array, " R"]]:
    """Returns max - min of each scope, by segment id, and which have at least two valid responses."""
    ids = _scope_ids(group, trajectory, scope)
    num_segments = ids.shape[0]
    low = grouped.minimum(entropy, ids, valid, num_segments=num_segments)
    high = grouped.maximum(entropy, ids, valid, num_segments=num_segments)
    return high - low, grouped.count(ids, valid, num_segments=num_segments) > 1


def adaptive_threshold(
    entropy: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    previous: Float[Array, ""] | None = None,
    *,
    scope: str = "group",
    quantile: float,
    decay: float = 0.0,
) -> Float[Array, ""]:
    """Returns a guard threshold in nats that follows the data: the `quantile` of the batch's scope ranges.

    Averaged with `previous` at weight `decay`. A previous value that is NaN or None is ignored; a batch in
    which no scope has two responses keeps it (0 without one). With quantile q, about a share q of the scopes
    is left alone.
    """
    ranges, present = scope_ranges(entropy, group, trajectory, valid, scope=scope)
    current = jax.lax.stop_gradient(grouped.quantile(ranges, present, level=quantile))
    if previous is None:
        return current
    known = ~jnp.isnan(previous)
    older = jnp.where(known, previous, current)
    return jnp.where(jnp.any(present), decay * older + (1 - decay) * current, older)


def noise_share(
    outcome: Float[Array, " R"],
    group: Int[Array, " R"],
    trajectory: Int[Array, " R"],
    valid: Bool[Array, " R"],
    *,
    noise_variance: float | Float[Array, ""] | Float[Array, " R"],
) -> Float[Array, " R"]:
    """Returns the share in [0, 1] of its group's variance of returns that environment noise explains.

    `noise_variance` is the variance of the return when the same actions are replayed; the group's variance
    counts each trajectory once (ddof 1). The share is 1 where noise is known and returns do not differ.
    """
    num_segments = group.shape[0]
    outcome = jax.lax.stop_gradient(grouped.wide(outcome))
    included = grouped.inside(group, valid & jnp.isfinite(outcome), num_segments=num_segments)
    counted = grouped.first_rows(trajectory, included)
    variance = grouped.variance(outcome, group, counted, num_segments=num_segments, ddof=1)
    here = grouped.rows(variance, group, included)
    noise = jnp.broadcast_to(jnp.asarray(noise_variance, here.dtype), here.shape)
    share = jnp.where(here > 0, jnp.minimum(noise / jnp.where(here > 0, here, 1), 1), (noise > 0) * 1.0)
    return jnp.where(included, share, 0)


def _scope_ids(group, trajectory, scope: str):
    if scope == "group":
        return group
    if scope == "trajectory":
        return trajectory
    if scope == "batch":
        return jnp.zeros_like(group)
    raise ValueError(f"unknown {scope=}; known: {', '.join(SCOPES)}")


def _shuffled(alpha, group, valid, key):
    """Alpha permuted among the valid rows of each group. A key a row: padding changes nothing."""
    num_rows = alpha.shape[0]
    index = jnp.arange(num_rows)
    draw = jax.vmap(lambda row: jax.random.uniform(jax.random.fold_in(key, row)))(index)
    bucket = jnp.where(valid, group, num_rows)
    target = jnp.lexsort((index, bucket))  # rows by group, in order
    source = jnp.lexsort((draw, bucket))  # rows by group, in a random order
    return alpha.at[target].set(alpha[source])
