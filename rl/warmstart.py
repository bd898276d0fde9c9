"""Behaviour cloning on demonstrations of training games: where a small random policy gets its first successes from."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

from envs.protocol import Demonstration
from model import scoring
from model.config import ModelConfig
from rl.batching import Row, microbatches
from rl.optimizer import decayed, schedule
from rl.types import Tokens

_IGNORED = -2  # response_id of a response that is shown but not imitated


def demonstrations(
    pool: Any, tasks: Sequence[str], *, slots: int, seed: int, on_done: Callable[[], None] | None = None
) -> list[Demonstration]:
    """Successful demonstrations of the tasks, in task order. Failed environments are skipped."""
    found: dict[int, Demonstration] = {}
    busy: dict[int, int] = {}
    free, cursor = list(range(slots)), 0
    while cursor < len(tasks) or busy:
        while free and cursor < len(tasks):
            slot = free.pop()
            busy[slot] = cursor
            pool.demonstrate(slot, tasks[cursor], (seed * 9176 + cursor) % 2**32)
            cursor += 1
        for event in pool.poll(5.0):
            number = busy.pop(event.slot, None)
            if number is None:
                continue
            free.append(event.slot)
            if event.kind == "demonstration" and event.demonstration.success:
                found[number] = event.demonstration
            if on_done:
                on_done()
    return [found[number] for number in sorted(found)]


def rows(demos: Sequence[Demonstration], tokenizer: Any, *, context: str, limit: int) -> list[Row]:
    """Token rows in the policy's own contexts. Rows longer than `limit` are dropped, whole."""
    out: list[Row] = []
    stop = tokenizer.stop_ids[0]
    for demo in demos:
        row = Row([], [], [])
        for number, turn in enumerate(demo.turns):
            observation = turn.observation
            text = observation.prompts[0]
            if context == "step" and number:
                out.append(row)
                row = Row([], [], [])
            if context == "conversation" and number:
                row.extend(tokenizer.continuation(text, closed=True))
            else:
                row.extend(tokenizer.prompt(observation.system, text))
            row.extend([*tokenizer.encode(turn.response), stop], 0 if turn.weight > 0 else _IGNORED)
        out.append(row)
    return [row for row in out if len(row.tokens) <= limit]


def loss(
    params: Any, batch: Tokens, observation_weight: Any, *, config: ModelConfig, block: int, remat: str
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Weighted mean negative log-likelihood: 1 on imitated responses, `observation_weight` on what the policy reads."""
    mask = (batch.segments > 0) & (batch.positions > 0) & (batch.response_id != _IGNORED)
    logp, _ = scoring.score(
        params,
        batch.tokens,
        batch.positions,
        batch.segments,
        mask,
        config=config,
        temperature=1.0,
        block=block,
        remat=remat,
    )
    action = mask & (batch.response_id >= 0)
    weight = jnp.where(action, 1.0, jnp.where(mask, observation_weight, 0.0))
    total = jnp.maximum(weight.sum(), 1.0)
    count = jnp.maximum(action.sum(), 1)
    return -(weight * logp).sum() / total, {"action_nll": -(action * logp).sum() / count}


def optimizer(settings: Any, steps: int) -> optax.GradientTransformation:
    """Adam, or Muon for the layers' matrices and Adam for the rest. The rate decays: a constant one diverges."""
    rate = functools.partial(schedule, "cosine", warmup=settings.warmup, steps=steps, end_fraction=0.02)
    clip = optax.clip_by_global_norm(settings.clip_norm) if settings.clip_norm else optax.identity()
    adam = rate(learning_rate=settings.learning_rate)
    if not settings.muon_learning_rate:
        return optax.chain(
            clip, optax.adamw(adam, 0.9, 0.95, weight_decay=settings.weight_decay, mask=decayed)
        )
    return optax.chain(
        clip,
        muon(
            rate(learning_rate=settings.muon_learning_rate),
            adam_learning_rate=adam,
            adam_b2=0.95,
            weight_decay=settings.weight_decay,
            muon_weight_dimension_numbers=_muon_axes,
            consistent_rms=0.2,
        ),
    )


_MUON_AXES = {  # axis 0 is the layer
    "wq": MuonDimensionNumbers(1, (2, 3)),
    "wk": MuonDimensionNumbers(1, (2, 3)),
    "wv": MuonDimensionNumbers(1, (2, 3)),
    "wo": MuonDimensionNumbers((1, 2), 3),
    "w_gate": MuonDimensionNumbers(1, 2),
    "w_up": MuonDimensionNumbers(1, 2),
    "w_down": MuonDimensionNumbers(1, 2),
}


def _muon_axes(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: _MUON_AXES.get(str(getattr(path[-1], "key", ""))), params
    )


def _epochs(blocks: Sequence[Tokens], seed: int) -> Iterator[Tokens]:
    order = random.Random(seed)
    while True:
        yield from order.sample(list(blocks), len(blocks))


def clone(
    params: Any,
    data: Sequence[Row],
    settings: Any,
    *,
    config: ModelConfig,
    row_buckets: Sequence[int],
    block: int,
    remat: str,
    seed: int,
    place: Callable[[Tokens], Tokens],
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Any:
    """Trains params (donated) for `settings.steps` steps and returns them. `place` puts a block on the devices."""
    if not data:
        raise ValueError("no demonstration fits: raise learner.row_buckets or rollout.prompt_limit")
    tx = optimizer(settings, settings.steps)
    state = tx.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, batch: Tokens) -> Any:
        grad = jax.value_and_grad(loss, has_aux=True)
        (value, aux), grads = grad(
            params, batch, settings.observation_weight, config=config, block=block, remat=remat
        )
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, {"loss": value, **aux}

    # Blocks mix games but not lengths: shuffling rows first and cutting each bucket afterwards keeps shapes few.
    shuffled = random.Random(seed).sample(list(data), len(data))
    blocks = _epochs(microbatches(shuffled, tokens=settings.batch_tokens, buckets=row_buckets), seed)
    for number in range(settings.steps):
        params, state, metrics = step(params, state, place(next(blocks)))
        if on_step and (number % 10 == 9 or number + 1 == settings.steps):
            on_step(number + 1, {name: float(value) for name, value in metrics.items()})
    return params
