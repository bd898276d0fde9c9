"""How much responses rely on goal and history (STAPO, appendix K): divergence from the blind context, and attribution.

For a response y of a context c, both at the temperature the policy was trained at:

kl           KL[pi(.|c) || pi(.|blind)] over the whole vocabulary, mean over the tokens of y (R_TA, STAPO section 4.2)
attribution  a_j = |<d log pi(y|c) / d e_j, e_j>| for the input embedding e_j of context token j (gradient x input; the
             output head is held fixed where it is tied); the sum of a_j over the goal and history tokens divided by
             the sum over all context tokens, the system turn and the chat markers included
held         the share of the context's tokens that are goal or history; `attribution` were that if all counted alike

Goal and history are what the blind prompt lacks. In a step context: the tokens in no matching block of prompt and blind
prompt (`difflib`, longest block first; a goal token that happens to lie in one is missed). In a conversation: those
tokens of the last user turn, and everything between the system turn and that turn, earlier responses included. The
blind prompt is the run's own: where env.settings.masked is not "both" it leaves out only the goal or only the history.

The paper does not define its score; some of its values exceed 1, so they are not shares and not comparable with these.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from model import scoring
from model.config import ModelConfig
from rl import step_groups
from rl.credit import aem
from rl.types import Draw, Trajectory
from sharding.transfer import to_device, to_host


class Side(NamedTuple):
    """Token rows, [B, T] each, the ids at the right end: a response has the same columns under either context."""

    tokens: Any
    positions: Any
    segments: Any  # 0 = padding


class Response(NamedTuple):
    context: list[int]
    blind: list[int]  # the blind context
    ids: list[int]
    trajectory: np.ndarray  # bool, which ids of `context` are goal or history


class Reliance(NamedTuple):
    """[B] each; 0 (attribution and held: NaN) in empty rows."""

    entropy: Any  # mean over tokens, nats
    kl: Any  # nats
    attribution: Any  # in [0, 1]; NaN where no context token has any
    held: Any  # in [0, 1]


def trajectory_tokens(
    context: Sequence[int], blind: Sequence[int], *, last: int, opening: int = 0
) -> np.ndarray:
    """Returns which ids of a context are goal or history, [len(context)] bool.

    Args:
      last: how many ids at the end are the turn that is answered: all of them in a step context.
      opening: how many ids at the beginning are the system turn; they never are.
    """
    start = len(context) - last
    marks = np.ones(len(context), bool)
    marks[: min(start, opening)] = False
    matcher = difflib.SequenceMatcher(None, context[start:], blind, autojunk=False)
    for place, _, size in matcher.get_matching_blocks():
        marks[start + place : start + place + size] = False
    return marks


def responses(trajectories: Sequence[Trajectory], *, kind: str, tokenizer: Any) -> list[Response]:
    """Every response of the episodes that count, in the order of the response table; `kind` is rollout.context."""
    out = []
    for trajectory in trajectories:
        before: list[int] = []
        for turn in trajectory.turns if trajectory.trained else ():
            context = list(turn.context_ids) if kind == "step" else [*before, *turn.context_ids]
            blind = tokenizer.prompt(turn.system, turn.blind)
            opening = _common(blind, tokenizer.prompt(turn.system, ""))
            marks = trajectory_tokens(context, blind, last=len(turn.context_ids), opening=opening)
            out.append(Response(context, blind, list(turn.response_ids), marks))
            before = [*context, *turn.response_ids]
    return out


def attribute(
    params: dict[str, Any],
    full: Side,
    response: jax.Array,
    *,
    config: ModelConfig,
    temperature: float,
    block: int,
    tail: int,
    remat: str = "none",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(|gradient x input| of every token [B, T]; activations [B, t, D] and entropies [B, t] of the last `tail` columns)

    `response` [B, T] marks the tokens whose summed log-probability is derived; they lie in those columns.
    """
    # A row of the table for every place: the gradient by the table is then that by place, not by word.
    embedded = params["embed"]["weight"][full.tokens]
    table = embedded.reshape(-1, embedded.shape[-1])
    places = jnp.arange(len(table)).reshape(full.tokens.shape)

    def logp(table: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        weights = {**params, "embed": {"weight": table}}
        hidden, mask = scoring.predicting(
            weights, places, full.positions, full.segments, response, config=config, remat=remat
        )
        hidden, mask, targets = (x[:, -tail:] for x in (hidden, mask, full.tokens))
        scores, entropy = scoring.score_hidden(
            params, hidden, targets, mask, temperature=temperature, block=block
        )
        return scores.sum(), (hidden, entropy)

    gradient, (hidden, entropy) = jax.grad(logp, has_aux=True)(table)
    products = jnp.sum(gradient * table, -1, dtype=jnp.float32).reshape(full.tokens.shape)
    return jnp.abs(products), hidden, entropy


def measure(
    params: dict[str, Any],
    full: Side,
    blind: Side,
    response: jax.Array,
    trajectory: jax.Array,
    *,
    config: ModelConfig,
    temperature: float,
    first_k: int,
    block: int,
    tail: int,
    remat: str = "none",
) -> Reliance:
    """The numbers of one block of rows; `trajectory` [B, T] marks goal and history. Jitted by `Meter`."""
    products, hidden, entropy = attribute(
        params,
        full,
        response,
        config=config,
        temperature=temperature,
        block=block,
        tail=tail,
        remat=remat,
    )
    masked, mask = (
        x[:, -tail:] for x in scoring.predicting(params, *blind, mask=response, config=config, remat=remat)
    )
    kl = scoring.divergence((params, hidden), (params, masked), mask, temperature=temperature, block=block)
    rows = len(response)
    ids = jnp.where(mask, jnp.arange(rows)[:, None], -1)
    context = (full.segments > 0) & ~response
    # Scaled by the row's largest, so that log-probabilities near 0 do not sum to nothing in float32.
    largest = jnp.max(jnp.where(context, products, 0), -1, keepdims=True)
    products = products / jnp.where(largest > 0, largest, 1)
    attribution, held = (
        _share(weight, trajectory, context) for weight in (products, jnp.ones_like(products))
    )
    return Reliance(
        aem.response_mean(entropy, ids, num_responses=rows, first_k=first_k),
        aem.response_mean(kl, ids, num_responses=rows),
        attribution,
        held,
    )


class Meter:
    """Measures the responses of a run's policies in few shapes. `learner` gives model, mesh and scoring settings.

    Args:
      buckets: row lengths; each compiles once.
      tokens: about how many of a block.
      tail: the longest response.
    """

    def __init__(self, learner: Any, *, buckets: Sequence[int], tokens: int, tail: int):
        settings = learner.settings
        self.mesh, self.multiple = learner.mesh, learner.row_multiple
        self.buckets, self.tokens = tuple(buckets), tokens
        self._measure = jax.jit(
            functools.partial(
                measure,
                config=learner.config,
                temperature=settings.temperature,
                first_k=settings.first_k,
                block=settings.block,
                tail=tail,
                remat=settings.remat,
            )
        )

    def __call__(
        self, params: Any, found: Sequence[Response], *, advance: Callable[[int], None] = lambda _: None
    ) -> Reliance:
        """Numpy arrays of [len(found)]. Raises ValueError if a row is longer than the last bucket."""
        sizes = [max(len(one.context), len(one.blind)) + len(one.ids) for one in found]
        if sizes and max(sizes) > self.buckets[-1]:
            raise ValueError(f"a row of {max(sizes)} tokens exceeds learner.row_buckets={self.buckets}")
        out = Reliance(*(np.zeros(len(found), np.float32) for _ in Reliance._fields))
        lower = 0
        for width in self.buckets:
            members = [r for r, size in enumerate(sizes) if lower < size <= width]
            lower = width
            height = max(1, self.tokens // width // self.multiple) * self.multiple
            for start in range(0, len(members), height):
                some = members[start : start + height]
                parts = to_device(
                    _block([found[r] for r in some], height, width), self.mesh, ("batch", "length")
                )
                with jax.set_mesh(self.mesh):
                    measured = to_host(self._measure(params, *parts))
                for column, values in zip(out, measured, strict=True):
                    column[some] = values[: len(some)]
                advance(len(some))
        return out


def study(
    config: Any, parts: Any, *, steps: Sequence[int], tasks: Sequence[str], members: int, seed: int
) -> Iterator[tuple[int, list[Trajectory], Reliance]]:
    """(checkpoint, episodes with their step groups, numbers of their responses) of a run: `members` episodes a task.

    Sampled as in training. A seed depends on the place only: all checkpoints of all runs are asked the same.
    Raises ValueError if no episode can be measured.
    """
    draws = [
        Draw(task, n, member, (seed * 7919 + (n * members + member) * 104729 + 13) % 2**32)
        for n, task in enumerate(tasks)
        for member in range(members)
    ]
    learner, progress = config.learner, parts.progress
    meter = Meter(
        parts.learner,
        buckets=learner.row_buckets,
        tokens=learner.microbatch_tokens,
        tail=config.rollout.response_limit,
    )
    for step in steps:
        state = parts.state
        if step != parts.iteration:
            state = parts.checkpoints.restore(parts.learner.like(), step=step)[1]
        with progress.bar(f"step {step}: episodes", len(draws)) as advance:
            played = parts.rollout.collect(state.params, draws, on_episode=lambda _, done=advance: done())
        step_groups.label(played, parts.step_groups)
        found = responses(played, kind=config.rollout.context, tokenizer=parts.tokenizer)
        if not found:
            broken = next((t.failed for t in played if t.failed), "no episode has a turn")
            raise ValueError(f"nothing to measure at step {step}: {broken}")
        with progress.bar(f"step {step}: responses", len(found)) as advance:
            yield step, played, meter(state.params, found, advance=advance)


def _block(found: Sequence[Response], height: int, width: int) -> tuple[Side, Side, np.ndarray, np.ndarray]:
    full, blind = (Side(*(np.zeros((height, width), np.int32) for _ in Side._fields)) for _ in range(2))
    response, trajectory = (np.zeros((height, width), bool) for _ in range(2))
    for row, one in enumerate(found):
        for side, context in ((full, one.context), (blind, one.blind)):
            size = len(context) + len(one.ids)
            side.tokens[row, -size:] = [*context, *one.ids]
            side.positions[row, -size:] = np.arange(size)
            side.segments[row, -size:] = 1
        response[row, -len(one.ids) :] = True
        end = width - len(one.ids)
        trajectory[row, end - len(one.context) : end] = one.trajectory
    return full, blind, response, trajectory


def _share(weight: jax.Array, part: jax.Array, whole: jax.Array) -> jax.Array:
    """The weight of `part` in that of `whole`, [B]; NaN where that is 0."""
    above, below = (jnp.sum(jnp.where(chosen, weight, 0), -1) for chosen in (part & whole, whole))
    return jnp.where(below > 0, above / jnp.where(below > 0, below, 1), jnp.nan)


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    """How many leading ids two sequences share."""
    return next((n for n, (a, b) in enumerate(zip(one, two)) if a != b), min(len(one), len(two)))
