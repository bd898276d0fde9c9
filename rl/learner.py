"""Scores, credits and updates: three jitted stages over one mesh, each built once.

score   logp and entropy of every sampled token under the policy that sampled it, in one blocked pass; with a value
        head, what it says where each response begins
credit  base advantage times AEM's coefficient, on response rows; no model
update  the clipped objective, one optimizer step a mini-batch, gradients summed over its micro-batches; at located
        responses also the divergences from their trajectory-blind contexts
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from model import params as model_params
from model.config import ModelConfig
from rl import passes
from rl.credit.assign import Credit, assign
from rl.objective import aggregate
from rl.passes import LearnerSettings, TrainState
from rl.types import Blind, CreditedBatch, ScoredBatch, TrainBatch
from sharding import rules, transfer

DENOMINATORS = ("batch", "microbatch")


class Updated(NamedTuple):
    """What an update says: losses by name, and R_TA and P_TI of the located responses, [R], 0 elsewhere."""

    losses: dict[str, float]
    aware: Any
    independent: Any


class Learner:
    """Holds the jitted stages; all state is passed in and returned."""

    def __init__(
        self,
        config: ModelConfig,
        settings: LearnerSettings,
        tx: optax.GradientTransformation,
        *,
        mesh: Mesh,
        seed: int,
    ):
        if settings.denominator not in DENOMINATORS:
            raise ValueError(f"unknown {settings.denominator=}; known: {', '.join(DENOMINATORS)}")
        if settings.credit.estimator.needs_value and not config.value_head:
            raise ValueError(f"estimator={settings.credit.estimator.name!r} needs a model with a value head")
        self.config, self.settings, self.mesh, self.tx = config, settings, mesh, tx
        self.key = jax.random.key(seed)
        self.row_multiple = mesh.shape["data"] * mesh.shape["fsdp"]
        self._score = jax.jit(
            functools.partial(passes.score, config=config, settings=settings), static_argnames="size"
        )
        self._credit = jax.jit(functools.partial(assign, settings=settings.credit))
        self._counts = jax.jit(aggregate.denominators)
        self._gradient = jax.jit(
            functools.partial(passes.gradient, config=config, settings=settings), donate_argnums=1
        )
        # Named, or the compiler returns equivalent shardings of another spelling and the next call compiles again.
        where = jax.tree.map(lambda leaf: leaf.sharding, self.like())
        self._apply = jax.jit(
            functools.partial(passes.apply, tx=tx),
            donate_argnums=0,
            out_shardings=(where, rules.replicated(mesh)),
        )
        self._zeros = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree))

    def init(self, params: Any) -> TrainState:
        """The state before the first update. With a term that reads it the reference is a copy of `params`."""
        # Placed as an update returns them, so that the second iteration compiles nothing.
        params = jax.device_put(params, model_params.shardings(self.config, self.mesh))
        reference = jax.tree.map(jnp.copy, params) if self.settings.needs_reference else None
        with jax.set_mesh(self.mesh):
            optimizer = jax.jit(self.tx.init, out_shardings=self._state_shardings(params))(params)
        scalars = transfer.to_device({"step": jnp.int32(0), "threshold": jnp.float32(jnp.nan)}, self.mesh, ())
        return TrainState(params, optimizer, scalars["step"], scalars["threshold"], reference)

    def like(self) -> TrainState:
        """Shapes and shardings of `init`'s result, for a checkpoint to be restored into."""
        shardings = model_params.shardings(self.config, self.mesh)
        params = jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, jnp.float32, sharding=s),
            model_params.shapes(self.config),
            shardings,
        )
        optimizer = jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
            jax.eval_shape(self.tx.init, params),
            self._state_shardings(params),
        )
        everywhere = rules.replicated(self.mesh)
        step = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
        threshold = jax.ShapeDtypeStruct((), jnp.float32, sharding=everywhere)
        return TrainState(
            params, optimizer, step, threshold, params if self.settings.needs_reference else None
        )

    def _state_shardings(self, params: Any) -> Any:
        """Moments lie where their parameters lie; scalars everywhere."""
        shapes = jax.eval_shape(self.tx.init, params)
        shardings = model_params.shardings(self.config, self.mesh)
        return optax.tree.map_params(
            self.tx,
            lambda _, sharding: sharding,
            shapes,
            shardings,
            transform_non_params=lambda _: rules.replicated(self.mesh),
        )

    def place(self, batch: TrainBatch) -> TrainBatch:
        """The batch on the mesh: token rows split over data and fsdp, the response table everywhere."""
        rows = tuple(transfer.to_device(part, self.mesh, ("batch", "length")) for part in batch.rows)
        return dataclasses.replace(
            batch, responses=transfer.to_device(batch.responses, self.mesh, ()), rows=rows
        )

    def score(self, state: TrainState, batch: TrainBatch) -> ScoredBatch:
        """Old and reference log-probabilities, entropies, and their means over each response."""
        size = batch.responses.valid.shape[0]
        old, reference = [], []
        entropy = surprisal = value = jnp.zeros(size, jnp.float32)
        with jax.set_mesh(self.mesh):
            for rows in batch.rows:
                scores, parts = self._score(state.params, rows, size=size)
                entropy, surprisal, value = (a + b for a, b in zip((entropy, surprisal, value), parts))
                old.append(scores)
                if self.settings.objective.kl_coef:
                    reference.append(self._score(state.reference, rows, size=size)[0].logp)
        return jax.block_until_ready(
            ScoredBatch(batch, tuple(old), tuple(reference), entropy, surprisal, value)
        )

    def credit(
        self, state: TrainState, scored: ScoredBatch, iteration: int
    ) -> tuple[TrainState, CreditedBatch]:
        """Base advantage, coefficient, and their product; see `rl.credit.assign`."""
        with jax.set_mesh(self.mesh):
            credit: Credit = self._credit(
                scored.batch.responses,
                scored.entropy,
                scored.surprisal,
                scored.value,
                jax.random.fold_in(self.key, iteration),
                state.threshold,
            )
        jax.block_until_ready(credit)
        fields = {name: value for name, value in credit._asdict().items() if name != "threshold"}
        return dataclasses.replace(state, threshold=credit.threshold), CreditedBatch(scored, **fields)

    def place_blind(self, blocks: Sequence[Blind | None]) -> tuple[Blind | None, ...]:
        """The blocks of `rl.blind.pack` on the mesh."""
        return tuple(block and transfer.to_device(block, self.mesh, ("batch", "length")) for block in blocks)

    def update(
        self, state: TrainState, credited: CreditedBatch, blind: Sequence[Blind | None] = ()
    ) -> tuple[TrainState, Updated]:
        """The state (donated) after all optimizer steps of this batch, and what was lost, averaged over them.

        `blind` holds the located responses of each micro-batch; R_TA and P_TI are those of the first epoch.
        """
        scored, trained = credited.scored, credited.trained
        batch = scored.batch
        blind = blind or (None,) * len(batch.rows)
        aware = independent = jnp.zeros(trained.shape, jnp.float32)
        sums: dict[str, list[float]] = {}
        with jax.set_mesh(self.mesh):
            for epoch in range(self.settings.epochs):
                start = 0
                for count in batch.minibatches:
                    members = range(start, start + count)
                    start += count
                    counts = _denominators(
                        [self._counts(batch.rows[m].response_id, trained) for m in members],
                        kind=self.settings.denominator,
                    )
                    grads, parts = self._zeros(state.params), []
                    for m, share in zip(members, counts, strict=True):
                        grads, metrics, terms = self._gradient(
                            state.params,
                            grads,
                            batch.rows[m],
                            scored.old[m].logp,
                            scored.reference[m] if scored.reference else None,
                            credited.advantage,
                            (scored.value, credited.target),
                            trained,
                            share,
                            blind[m],
                            state.reference if blind[m] is not None else None,
                        )
                        parts.append(metrics)
                        if terms is not None and epoch == 0:
                            aware, independent = aware + terms.reward, independent + terms.penalty
                    state, norms = self._apply(state, grads)
                    parts.append({name: (value, jnp.ones(())) for name, value in norms.items()})
                    for metrics in transfer.to_host(parts):
                        for name, (numerator, denominator) in metrics.items():
                            pair = sums.setdefault(name, [0.0, 0.0])
                            pair[0] += float(numerator)
                            pair[1] += float(denominator)
        losses = {name: top / bottom if bottom else 0.0 for name, (top, bottom) in sums.items()}
        losses |= {"optimizer/step": int(state.step), "optimizer/updates": len(batch.minibatches)}
        return state, Updated(losses, aware, independent)


def _denominators(counts: list[aggregate.Denominators], *, kind: str) -> list[aggregate.Denominators]:
    """Each micro-batch's: those of all together, or its own with the micro-batches averaged (some peers' form)."""
    if kind == "batch":
        return [aggregate.add(*counts)] * len(counts)
    return [c._replace(tokens=c.tokens * len(counts), responses=c.responses * len(counts)) for c in counts]
