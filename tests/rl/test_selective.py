"""STAPO in the learner: the objective against float64 finite differences, its switches, micro-batches, devices."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl import batching, blind, passes
from rl.blind import BlindSettings
from rl.credit.outliers import OutlierSettings
from rl.learner import Learner, LearnerSettings, Updated
from rl.objective import aggregate
from rl.objective.attribution import AttributionSettings
from rl.types import CreditedBatch, Trajectory, Turn
from sharding.transfer import to_host
from tests.model import reference
from tests.rl.episodes import batch_of_episodes
from tests.rl.test_learner import MODEL, OBJECTIVE, PACKING, SETTINGS, assert_close, make, shared

ALL = OutlierSettings("all", 1.5, "raw", 1, 1e-6)
TERMS = AttributionSettings(reward_coef=0.3, penalty_coef=0.2)
STAPO = dataclasses.replace(
    SETTINGS,
    credit=dataclasses.replace(SETTINGS.credit, outliers=ALL),
    objective=dataclasses.replace(OBJECTIVE, entropy_coef=0.0),
    attribution=TERMS,
)
LOCATED = (0, 3, 4, 9, 17)
BLOCK = BlindSettings(width=64, rows=(8,))


def encode(turn: Turn) -> list[int]:
    return [5, 7, 1 + int(turn.prompt.split()[-1])]


def prepare(
    learner: Learner, state: Any, episodes: list[Trajectory], tokens: int = 4096
) -> tuple[Any, CreditedBatch, tuple[Any, ...]]:
    """Credit, and blocks of the responses LOCATED."""
    packed = batching.pack(
        episodes,
        microbatch_tokens=tokens,
        multiple=learner.row_multiple,
        **(PACKING | {"row_buckets": (64,)}),
    )
    state, credited = learner.credit(state, learner.score(state, learner.place(packed)), 0)
    mask = np.zeros(packed.responses.valid.shape, bool)
    mask[list(LOCATED)] = True
    blocks, _ = blind.pack(
        episodes,
        packed,
        mask,
        np.zeros(mask.shape),
        encode=encode,
        settings=BLOCK,
        multiple=learner.row_multiple,
    )
    return state, credited, learner.place_blind(blocks)


def update(settings: LearnerSettings = STAPO, tokens: int = 4096, **axes: int) -> tuple[Any, Updated]:
    learner, state = make(settings, devices=int(np.prod(list(axes.values()) or [1])), **axes)
    # A reference that is not the policy, or the penalty would be 0.
    other = jax.tree.map(lambda x: x * 1.3, state.params)
    state = dataclasses.replace(state, reference=other)
    state, credited, blocks = prepare(learner, state, batch_of_episodes(), tokens)
    return learner.update(state, credited, blocks)


# The objective in float64 numpy, a response at a time: shares no code with rl/ or model/.


def log_policy(params: Any, context: list[int], ids: list[int]) -> np.ndarray:
    """[tokens, vocabulary] log-probabilities along `ids`."""
    z = reference.logits(params, [*context, *ids], MODEL)[len(context) - 1 : -1] / STAPO.temperature
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def wanted(
    params: Any, reference_params: Any, old: dict[int, np.ndarray], advantage: np.ndarray
) -> tuple[float, dict[int, float], dict[int, float]]:
    """(-J, R_TA, P_TI) of all episodes."""
    total, aware, independent, r = 0.0, {}, {}, 0
    for t in batch_of_episodes():
        context: list[int] = []
        for turn in t.turns:
            context += turn.context_ids
            full = log_policy(params, context, turn.response_ids)
            chosen = full[np.arange(len(full)), turn.response_ids]
            ratio = np.exp(chosen - old[r])
            a = float(advantage[r])
            gain = np.minimum(ratio * a, np.clip(ratio, 0.8, 1.2) * a)
            d = log_policy(reference_params, context, turn.response_ids)
            d = d[np.arange(len(d)), turn.response_ids] - chosen
            total += float((gain - OBJECTIVE.kl_coef * (np.exp(d) - d - 1)).mean())
            if r in LOCATED:
                masked = log_policy(params, encode(turn), turn.response_ids)
                aware[r] = kl(full, masked)
                independent[r] = kl(masked, log_policy(reference_params, encode(turn), turn.response_ids))
                total += TERMS.reward_coef * aware[r] - TERMS.penalty_coef * independent[r]
            context += turn.response_ids
            r += 1
    return -total / r, aware, independent


@pytest.mark.slow
def test_the_whole_objective_and_its_gradient_against_float64() -> None:
    learner, state = make(STAPO)
    state = dataclasses.replace(state, reference=jax.tree.map(lambda x: x * 1.3, state.params))
    state, credited, blocks = prepare(learner, state, batch_of_episodes())
    scored, batch = credited.scored, credited.scored.batch
    (rows,), (old,) = batch.rows, scored.old
    params, frozen = to_host(state.params), to_host(state.reference)
    # Somewhat off-policy, so that ratios differ from 1 and some are clipped.
    shifted = jax.tree.map(lambda x: (x * 1.02).astype(np.float32), params)
    gradient, _, terms = jax.jit(functools.partial(passes.gradient, config=MODEL, settings=STAPO))(
        shifted,
        jax.tree.map(jnp.zeros_like, shifted),
        rows,
        old.logp,
        scored.reference[0],
        credited.advantage,
        (scored.value, credited.target),
        credited.trained,
        aggregate.denominators(rows.response_id, credited.trained),
        blocks[0],
        state.reference,
    )
    ids, logp = np.asarray(rows.response_id), np.asarray(old.logp)
    kept = {r: logp[ids == r].astype(np.float64) for r in range(int(credited.trained.sum()))}
    advantage = np.asarray(credited.advantage, np.float64)
    _, aware, independent = wanted(shifted, frozen, kept, advantage)
    np.testing.assert_allclose(terms.reward[np.array(LOCATED)], list(aware.values()), rtol=1e-4)
    np.testing.assert_allclose(terms.penalty[np.array(LOCATED)], list(independent.values()), rtol=1e-4)
    source = np.random.default_rng(0)
    for name in ("embed", "layers"):  # a random direction through each part of the tree
        direction = jax.tree.map(lambda x: np.zeros(x.shape), shifted)
        direction[name] = jax.tree.map(lambda x: source.normal(size=x.shape), direction[name])
        ahead, behind = (
            jax.tree.map(lambda x, d, step=step: x + step * d, shifted, direction) for step in (1e-6, -1e-6)
        )
        rise = wanted(ahead, frozen, kept, advantage)[0] - wanted(behind, frozen, kept, advantage)[0]
        slope = sum(jax.tree.leaves(jax.tree.map(lambda g, d: float((g * d).sum()), gradient, direction)))
        assert slope == pytest.approx(rise / 2e-6, rel=2e-3)


@pytest.mark.slow
def test_micro_batches_equal_the_batch() -> None:
    whole, one = update()
    parts, many = update(tokens=128)
    assert_close(whole.params, parts.params, atol=1e-5)  # divergences of nats: larger sums, larger rounding
    np.testing.assert_allclose(one.aware, many.aware, rtol=1e-4, atol=1e-6)
    assert set(np.flatnonzero(one.aware)) == set(LOCATED) == set(np.flatnonzero(one.independent))


@pytest.mark.slow
def test_eight_devices_equal_one() -> None:
    assert_close(update()[0].params, update(data=2, fsdp=2, tensor=2)[0].params, atol=1e-5)


@pytest.mark.slow
def test_without_blocks_it_is_the_base_objective() -> None:
    learner, state = make(STAPO)
    params = to_host(state.params)
    state, credited, _ = prepare(learner, state, batch_of_episodes())
    alone, updated = learner.update(state, credited)
    plain = dataclasses.replace(STAPO, attribution=AttributionSettings())
    learner, state = make(plain)
    state, credited, _ = prepare(
        learner, learner.init(jax.tree.map(jnp.asarray, params)), batch_of_episodes()
    )
    base, _ = learner.update(state, credited)
    assert_close(alone.params, base.params)
    assert not np.any(updated.aware)


def with_terms(**changes: Any) -> LearnerSettings:
    return dataclasses.replace(STAPO, attribution=dataclasses.replace(TERMS, **changes))


def moved(settings: LearnerSettings) -> np.ndarray:
    return np.asarray(update(settings)[0].params["embed"]["weight"])


@pytest.mark.slow
def test_gradients_of_the_reward_add_up_from_both_contexts() -> None:
    """Stopping either leaves the other's part; the plain step of SGD is their sum."""
    base = moved(with_terms(reward_coef=0.0, penalty_coef=0.0))
    only = {"penalty_coef": 0.0}
    both, of_full, of_masked = (
        moved(with_terms(**only, **stop)) - base
        for stop in ({}, {"stop_gradient_masked": True}, {"stop_gradient_full": True})
    )
    assert min(np.abs(x).max() for x in (both, of_full, of_masked)) > 1e-5
    np.testing.assert_allclose(of_full + of_masked, both, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_estimates_read_the_sampled_tokens_only(kind: str) -> None:
    settings = with_terms(kind=kind)
    _, state = make(settings)
    params = to_host(state.params)
    _, updated = update(settings)
    r = 0
    for t in batch_of_episodes():
        context: list[int] = []
        for turn in t.turns:
            context += turn.context_ids
            if r in LOCATED:
                at = np.arange(len(turn.response_ids)), turn.response_ids
                d = log_policy(params, encode(turn), turn.response_ids)[at]
                d = d - log_policy(params, context, turn.response_ids)[at]
                want = (-d if kind == "k1" else np.expm1(d) - d).mean()
                assert float(updated.aware[r]) == pytest.approx(want, rel=1e-3, abs=1e-4)
            context += turn.response_ids
            r += 1


@pytest.mark.slow
def test_nothing_retraces_between_iterations() -> None:
    learner, state = shared.__wrapped__(STAPO, MODEL, 1, ()), make(STAPO)[1]
    for _ in range(2):
        state, credited, blocks = prepare(learner, state, batch_of_episodes())
        state, _ = learner.update(state, credited, blocks)
    assert learner._gradient._cache_size() == 1


def test_terms_without_located_responses_are_refused() -> None:
    with pytest.raises(ValueError, match=r"credit\.outliers\.enabled=True"):
        dataclasses.replace(SETTINGS, attribution=TERMS)
