"""A policy that needs no network: the next token's logits are a row of a table. Loss and gradient of whole batches."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl.objective import aggregate, objective
from rl.types import Tokens, TrainBatch

VOCABULARY = 50
WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)), jnp.float32)
SETTINGS = objective.ObjectiveSettings(
    surrogate="token",
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    ratio_clamp=20.0,
    kl_coef=0.1,
    kl_kind="k3",
    kl_input_clamp=20.0,
    kl_output_clamp=0.0,
    entropy_coef=0.01,
    aggregation="token_mean",
    constant_length=5.0,
    importance_cap=0.0,
)


def logits(weights: jax.Array, rows: Tokens) -> jax.Array:
    """[B, T, V], aligned at the token they predict."""
    before = jnp.pad(rows.tokens, ((0, 0), (1, 0)))[:, :-1]
    return weights[before]


def share(
    z: jax.Array, rows: Tokens, advantage: Any, valid: Any, counts: aggregate.Denominators, *, settings: Any
) -> jax.Array:
    """The loss of a micro-batch under logits `z`: off-policy by a little, with KL and entropy terms."""
    logp = jax.nn.log_softmax(z)
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    chosen = jnp.take_along_axis(logp, rows.tokens[..., None], axis=-1)[..., 0]
    old, reference = rows.logp_sampler - 3.5, rows.logp_sampler - 4.0
    return objective.objective(
        chosen, entropy, old, reference, None, advantage, rows.response_id, valid, counts, settings=settings
    )[0]


@functools.partial(jax.jit, static_argnames="settings")
def _gradient(weights: Any, rows: Any, advantage: Any, valid: Any, counts: Any, settings: Any) -> Any:
    def loss(weights: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            share(logits(weights, rows), rows, advantage, valid, counts, settings=s) for s in settings
        )

    return loss(weights), jax.jacrev(loss)(weights)


def gradients(
    batch: TrainBatch, advantage: Any, settings: Any = (SETTINGS,)
) -> tuple[np.ndarray, np.ndarray]:
    """(losses, gradients) of a batch under each of `settings`, summed over its micro-batches."""
    batch = jax.tree.map(jnp.asarray, batch)
    valid, advantage = batch.responses.valid, jnp.asarray(advantage, jnp.float32)
    counts = aggregate.add(*(aggregate.denominators(rows.response_id, valid) for rows in batch.rows))
    parts = [_gradient(WEIGHTS, rows, advantage, valid, counts, settings) for rows in batch.rows]
    losses, slopes = (np.sum([np.stack(part[i]) for part in parts], axis=0) for i in (0, 1))
    return losses, slopes
