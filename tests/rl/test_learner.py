"""The three jitted stages: micro-batches equal the batch, 8 devices equal one, nothing retraces, padding is silent."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import decoder, scoring, value_head
from model import params as model_params
from model.config import ModelConfig
from rl import batching, optimizer
from rl.credit.aem import AemSettings
from rl.credit.assign import CreditSettings
from rl.credit.estimators import EstimatorSettings
from rl.learner import Learner, LearnerSettings, TrainState
from rl.objective.objective import ObjectiveSettings
from rl.types import Trajectory
from sharding.mesh import make_mesh
from sharding.transfer import to_host
from tests.rl.episodes import batch_of_episodes, episode

MODEL = ModelConfig(
    vocab_size=56, width=16, layers=2, heads=4, kv_heads=2, head_size=8, hidden=32, qk_norm=True
)
AEM = AemSettings(threshold=0.0, scope="group", reverse=False, shuffle=False, proxy="entropy", mix=0.5)
OBJECTIVE = ObjectiveSettings(
    surrogate="token",
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    ratio_clamp=20.0,
    kl_coef=0.05,
    kl_kind="k3",
    kl_input_clamp=20.0,
    kl_output_clamp=0.0,
    entropy_coef=0.01,
    aggregation="seq_mean_token_mean",
    constant_length=1.0,
    importance_cap=0.0,
)
SETTINGS = LearnerSettings(
    credit=CreditSettings(
        estimator=EstimatorSettings("grpo", "trajectory", 1, 1e-6, "zero"), penalty="advantage", aem=AEM
    ),
    first_k=0,
    objective=OBJECTIVE,
    temperature=0.7,
    epochs=1,
    block=32,
    remat="none",
)
PACKING: dict[str, Any] = dict(context="conversation", row_buckets=(16, 64), response_bucket=32)


@functools.cache
def shared(settings: LearnerSettings, model: ModelConfig, devices: int, axes: tuple) -> Learner:
    """One learner a composition for all tests: it holds compiled stages and no state."""
    mesh = make_mesh(**({"data": 1, "fsdp": 1, "tensor": 1} | dict(axes)), devices=jax.devices()[:devices])
    # Plain SGD: Adam's first step is the sign of the gradient and would hide its size.
    return Learner(model, settings, optimizer.optax.sgd(0.1), mesh=mesh, seed=0)


def make(
    settings: LearnerSettings = SETTINGS, devices: int = 1, *, model: ModelConfig = MODEL, **axes: int
) -> tuple[Learner, TrainState]:
    learner = shared(settings, model, devices, tuple(axes.items()))
    params = model_params.init(jax.random.key(1), model, mesh=learner.mesh)
    # A fresh model is near uniform: entropies would span less than their rounding and alpha would amplify it.
    params["embed"]["weight"] = params["embed"]["weight"] * 40
    if model.value_head:  # as if trained: a fresh one says 0 everywhere
        weight = jnp.linspace(-0.3, 0.4, model.width)
        params["value_head"] = {"weight": weight, "bias": jnp.float32(0.2)}
    return learner, learner.init(params)


def credit(**changes: Any) -> LearnerSettings:
    return dataclasses.replace(SETTINGS, credit=dataclasses.replace(SETTINGS.credit, **changes))


def step(
    learner: Learner, state: TrainState, episodes: list[Trajectory], tokens: int = 4096, **packing: Any
) -> tuple[TrainState, Any, dict[str, float]]:
    batch = batching.pack(
        episodes, microbatch_tokens=tokens, multiple=learner.row_multiple, **(PACKING | packing)
    )
    scored = learner.score(state, learner.place(batch))
    state, credited = learner.credit(state, scored, 0)
    state, updated = learner.update(state, credited)
    return state, credited, updated.losses


def assert_close(one: Any, two: Any, atol: float = 2e-6) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5), to_host(one), to_host(two)
    )


@pytest.mark.slow
def test_microbatches_equal_the_batch() -> None:
    """Bug 16, over rows of many lengths and block shapes."""
    episodes = batch_of_episodes()
    whole, _, one = step(*make(), episodes)
    parts, credited, many = step(*make(), episodes, tokens=64)
    assert len(credited.scored.batch.rows) > 3
    assert_close(whole.params, parts.params)
    for name in ("objective/loss", "objective/policy_loss", "optimizer/gradient_norm"):
        assert one[name] == pytest.approx(many[name], rel=1e-4, abs=1e-7)


@pytest.mark.slow
def test_denominators_of_a_micro_batch_are_some_peers_form() -> None:
    """Report 16's other side: the switch that reproduces them depends on the split, and only there."""
    settings = dataclasses.replace(SETTINGS, denominator="microbatch")
    whole, _, _ = step(*make(settings), batch_of_episodes())
    batch, _, _ = step(*make(), batch_of_episodes())
    assert_close(whole.params, batch.params)  # one micro-batch: the same
    parts, _, _ = step(*make(settings), batch_of_episodes(), tokens=64)
    gap = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), to_host(parts.params), to_host(whole.params))
    assert max(jax.tree.leaves(gap)) > 1e-4


CRITIC_MODEL = dataclasses.replace(MODEL, value_head=True)
CRITIC = dataclasses.replace(
    SETTINGS,
    credit=CreditSettings(EstimatorSettings("gae", "trajectory", 1, 1e-6, "zero", gae_lam=0.9), "none"),
    objective=dataclasses.replace(OBJECTIVE, value_coef=0.5, value_clip=0.2),
)
WIDE: dict[str, Any] = {"row_buckets": (64,)}  # one row length, so few shapes are compiled


@functools.cache
def critic() -> tuple[Learner, Any]:
    """One learner for all tests, and parameters to start from (a state is donated)."""
    learner, state = make(CRITIC, model=CRITIC_MODEL)
    return learner, to_host(state.params)


@pytest.mark.slow
def test_value_is_read_where_each_response_begins() -> None:
    """Against the head on the activation of the token before each response."""
    learner, params = critic()
    episodes = batch_of_episodes()
    batch = learner.place(batching.pack(episodes, microbatch_tokens=256, **(PACKING | WIDE)))
    value = np.asarray(learner.score(learner.init(params), batch).value)
    said: dict[int, float] = {}
    forward = jax.jit(functools.partial(decoder.hidden_states, config=CRITIC_MODEL))
    for rows in batch.rows:
        hidden = forward(params, rows.tokens, rows.positions, rows.segments)
        at = np.asarray(value_head.values(params, hidden))
        for b, t in zip(*np.nonzero(np.asarray(rows.response_id) >= 0), strict=True):
            said.setdefault(int(rows.response_id[b, t]), at[b, t - 1])
    assert len(said) == sum(len(t.turns) for t in episodes)
    np.testing.assert_allclose(value[: len(said)], [said[r] for r in range(len(said))], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(value[len(said) :], 0)
    assert np.ptp(value[: len(said)]) > 0.3


@pytest.mark.slow
def test_microbatches_equal_the_batch_with_a_critic_and_its_loss_falls() -> None:
    """The value term and its gradient too, also that of the head."""
    learner, params = critic()
    episodes = batch_of_episodes()
    whole, _, one = step(learner, learner.init(params), episodes, **WIDE)
    parts, credited, many = step(learner, learner.init(params), episodes, tokens=256, **WIDE)
    assert len(credited.scored.batch.rows) >= 3
    assert_close(whole.params, parts.params)
    for name in ("objective/loss", "objective/value_loss", "optimizer/gradient_norm"):
        assert one[name] == pytest.approx(many[name], rel=1e-4, abs=1e-7)
    for name, leaf in to_host(whole.params["value_head"]).items():
        assert np.abs(leaf - params["value_head"][name]).max() > 1e-3
    losses = [many["objective/value_loss"]]
    for _ in range(4):
        parts, _, many = step(learner, parts, episodes, tokens=256, **WIDE)
        losses.append(many["objective/value_loss"])
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_a_sign_mask_trains_on_the_chosen_responses_only() -> None:
    """As if the others did not exist: their advantages may be anything, and no denominator counts them."""
    learner, state = make(credit(sign_mask="rising"))
    batch = learner.place(batching.pack(batch_of_episodes(), microbatch_tokens=4096, **(PACKING | WIDE)))
    state, credited = learner.credit(state, learner.score(state, batch), 0)
    trained, valid = np.asarray(credited.trained), np.asarray(batch.responses.valid)
    push = np.asarray(credited.base) * (np.asarray(credited.alpha) - 1)
    np.testing.assert_array_equal(trained, valid & (push < 0))
    assert 0 < trained.sum() < valid.sum()
    # The same responses in a batch where nothing else is marked as one.
    ids = batch.rows[0].response_id
    ids = jnp.where(np.isin(ids, np.flatnonzero(trained)), ids, -1)
    rows = dataclasses.replace(batch.rows[0], response_id=ids)
    scored = learner.score(state, dataclasses.replace(batch, rows=(rows,)))
    alone = dataclasses.replace(credited, scored=scored, trained=batch.responses.valid)
    expected, other = learner.update(learner.init(to_host(state.params)), alone)
    junk = dataclasses.replace(credited, advantage=jnp.where(trained, credited.advantage, jnp.nan))
    masked, updated = learner.update(state, junk)
    assert_close(masked.params, expected.params)
    assert updated.losses["objective/loss"] == pytest.approx(other.losses["objective/loss"], rel=1e-5)


def test_nothing_to_train_on_is_no_optimizer_step() -> None:
    """As after a compact filter that took every episode."""
    masked = [dataclasses.replace(t, masked="step_limit") for t in batch_of_episodes(groups=1)]
    _, credited, metrics = step(*make(), masked)
    assert not credited.trained.any() and metrics == {"optimizer/step": 0, "optimizer/updates": 0}


@pytest.mark.parametrize(
    "axes",
    [
        dict(data=2, fsdp=2, tensor=2),
        *(pytest.param(axes, marks=pytest.mark.slow) for axes in (dict(data=8), dict(fsdp=4, tensor=2))),
    ],
)
@pytest.mark.slow
def test_eight_devices_equal_one(axes: dict[str, int]) -> None:
    episodes = batch_of_episodes(groups=2, members=3)
    one, credit_one, metrics_one = step(*make(), episodes)
    eight, credit_eight, metrics_eight = step(*make(devices=8, **axes), episodes)
    assert_close(credit_one.alpha, credit_eight.alpha)
    assert_close(credit_one.advantage, credit_eight.advantage)
    assert_close(one.params, eight.params, atol=1e-5)
    assert metrics_one["objective/loss"] == pytest.approx(metrics_eight["objective/loss"], rel=1e-4, abs=1e-6)


def test_padding_rows_change_nothing() -> None:
    """Bug 9: rows added to fill a device multiple or a bucket carry no weight."""
    episodes = batch_of_episodes(groups=1, members=5)
    tight, _, _ = step(*make(), episodes)
    padded, _, _ = step(*make(), episodes, tokens=64 * 16, response_bucket=128)
    assert_close(tight.params, padded.params)


def test_failed_episode_is_excluded() -> None:
    """Bug 7: a failed member leaves its group as if it had never been drawn."""
    episodes = batch_of_episodes(groups=2, members=4)
    broken = episode(0, 4, [(2, 2)], reward=50.0, failed="worker died")
    without, credit, _ = step(*make(), episodes)
    with_it, credit_too, _ = step(*make(), [*episodes, broken])
    assert_close(credit.advantage, credit_too.advantage)
    assert_close(without.params, with_it.params)


@pytest.mark.slow
def test_old_policy_has_ratio_one_at_any_temperature() -> None:
    """Bug 15: score and update divide logits by the same temperature."""
    learner, state = make()
    _, _, metrics = step(learner, state, batch_of_episodes())
    assert metrics["objective/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["objective/old_kl_mean"] == pytest.approx(0.0, abs=1e-7)
    assert metrics["objective/kl_mean"] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.slow
def test_entropy_is_that_of_the_scorer() -> None:
    learner, state = make()
    _, credited, _ = step(learner, state, batch_of_episodes(groups=1))
    batch = credited.scored.batch
    fresh, _ = make()[1].params, None
    sums = np.zeros(batch.responses.valid.shape[0])
    counts = np.zeros_like(sums)
    for rows in batch.rows:
        mask = rows.response_id >= 0
        _, entropy = scoring.score(
            fresh, rows.tokens, rows.positions, rows.segments, mask, config=MODEL, temperature=0.7, block=8
        )
        np.add.at(sums, np.asarray(rows.response_id)[mask], np.asarray(entropy)[mask])
        np.add.at(counts, np.asarray(rows.response_id)[mask], 1)
    expected = sums / np.maximum(counts, 1)
    np.testing.assert_allclose(credited.scored.entropy, expected, atol=1e-5)


def test_aem_scales_the_base_advantage() -> None:
    _, credited, _ = step(*make(), batch_of_episodes())
    valid = np.asarray(credited.scored.batch.responses.valid)
    alpha, base = np.asarray(credited.alpha)[valid], np.asarray(credited.base)[valid]
    group = np.asarray(credited.scored.batch.responses.group)[valid]
    np.testing.assert_allclose(np.asarray(credited.advantage)[valid], alpha * base, rtol=1e-6)
    for g in np.unique(group):
        assert alpha[group == g].mean() == pytest.approx(1.0, abs=1e-5)
        assert np.ptp(alpha[group == g]) > 0
    _, credited, _ = step(*make(credit(aem=None)), batch_of_episodes())
    assert np.all(np.asarray(credited.alpha) == 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["advantage", "return", "none"])
def test_penalty_in_a_group_of_failures(mode: str) -> None:
    """Bug 8's cousin: members of an all-fail group that differ in penalties only must not get full-size advantages."""
    episodes = [
        episode(0, 0, [(1, 2), (1, 2)], penalties=(-0.1, 0.0)),
        episode(0, 1, [(1, 2), (1, 2)], penalties=(0.0, 0.0)),
    ]
    learner, state = make(credit(penalty=mode, aem=None))
    _, credited, _ = step(learner, state, episodes)
    expected = {
        "advantage": [-0.1, 0, 0, 0],
        "none": [0, 0, 0, 0],
        "return": np.array([-1, -1, 1, 1]) * 0.5**0.5,
    }[mode]
    np.testing.assert_allclose(credited.advantage[:4], expected, atol=1e-4)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r'set credit\.unit="response"'):
        credit(penalty="response")
    with pytest.raises(ValueError, match="estimator='gae' needs a model with a value head"):
        make(CRITIC)


@pytest.mark.slow
def test_minibatches_take_several_steps() -> None:
    episodes = batch_of_episodes()
    state, credited, metrics = step(*make(), episodes, minibatch_responses=8)
    assert int(state.step) == len(credited.scored.batch.minibatches) > 1
    assert metrics["optimizer/updates"] == int(state.step)
    assert metrics["objective/ratio_mean"] != 1.0  # later mini-batches have left the old policy


def test_nothing_retraces() -> None:
    learner, state = shared.__wrapped__(SETTINGS, MODEL, 1, ()), make()[1]
    for seed in range(3):
        episodes = [
            episode(g, m, [(3, 2)] * (1 + (m + seed) % 3), reward=m % 2) for g in range(2) for m in range(4)
        ]
        state, _, _ = step(learner, state, episodes, row_buckets=(64,))
    # One entry each, also for the reference: it lies where the parameters lie.
    for stage in (learner._score, learner._credit, learner._gradient, learner._apply):
        assert stage._cache_size() == 1


@pytest.mark.slow
def test_reference_moves_only_with_a_kl_term() -> None:
    learner, state = make()
    before = to_host(state.reference)
    state, _, _ = step(learner, state, batch_of_episodes())
    jax.tree.map(np.testing.assert_array_equal, before, to_host(state.reference))
    free, state = make(dataclasses.replace(SETTINGS, objective=dataclasses.replace(OBJECTIVE, kl_coef=0.0)))
    assert state.reference is None
    _, _, metrics = step(free, state, batch_of_episodes())
    assert "objective/kl_mean" not in metrics


def test_like_describes_init() -> None:
    learner, state = make(devices=8, data=2, fsdp=2, tensor=2)
    like = learner.like()
    assert jax.tree.structure(like) == jax.tree.structure(state)
    for shape, leaf in zip(jax.tree.leaves(like), jax.tree.leaves(state), strict=True):
        assert (shape.shape, shape.dtype) == (leaf.shape, leaf.dtype)
        assert leaf.sharding.is_equivalent_to(shape.sharding, leaf.ndim)


@pytest.mark.slow
def test_advantage_is_float32_for_bfloat16_models() -> None:
    learner = Learner(
        dataclasses.replace(MODEL, dtype="bfloat16"),
        SETTINGS,
        optimizer.optax.sgd(0.1),
        mesh=make_mesh(1, 1, 1, jax.devices()[:1]),
        seed=0,
    )
    state = learner.init(model_params.init(jax.random.key(1), MODEL))
    state, credited, metrics = step(learner, state, batch_of_episodes(groups=1))
    assert credited.advantage.dtype == credited.scored.entropy.dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))
    assert np.isfinite(metrics["objective/loss"])
