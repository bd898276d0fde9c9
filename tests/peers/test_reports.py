"""What users of other stacks report, one test a report, against our own functions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from model import layers, params, scoring
from model.config import ModelConfig
from model.generate import Generator
from model.tokenizer import Tokenizer
from model.weights import pretrained, safetensors
from rl import report, selection
from rl.checkpoint import Checkpoints
from rl.credit import trajectories
from rl.credit.aem import AemSettings
from rl.credit.assign import CreditSettings, assign
from rl.credit.estimators import estimate
from rl.learner import Learner, LearnerSettings
from rl.objective import aggregate
from sharding.mesh import make_mesh
from tests.peers import scripted, toy
from tests.peers.tables import GRPO, advantages, draws, pack, returns, table
from tests.rl.episodes import episode

RELATIVE = ("grpo", "centred", "rloo", "gigpo")
TINY = ModelConfig(
    vocab_size=50, width=16, layers=1, heads=2, kv_heads=1, head_size=8, hidden=24, qk_norm=True
)


@pytest.mark.parametrize("name", RELATIVE)
def test_report_01_a_group_of_one_got_its_raw_reward(name: str) -> None:
    """A group of one got the raw reward as advantage (group id taken per trajectory)."""
    lone, pair = returns(10.0), returns(1.0, 0.0, group=1)
    result = advantages(lone + pair, name)
    assert result[0] == 0
    assert result[1] > 0.4 and result[2] < -0.4, "members of a draw are compared with each other"


def test_report_02_row_order() -> None:
    """Shuffled rows changed advantages."""
    episodes = returns(1.0, 0.0, 3.0, turns=3) + returns(0.0, 1.0, group=1, turns=2)
    for number, t in enumerate(episodes):
        t.turns[number % 2].penalty = -0.1
    aem = AemSettings(threshold=0.0, scope="group", reverse=False, shuffle=False, proxy="entropy", mix=0.5)
    settings = CreditSettings(dataclasses.replace(GRPO, name="gigpo", whiten=True), "return", aem)
    run = jax.jit(lambda rows, h: assign(rows, h, h, h, None, jnp.float32(0), settings=settings).advantage)
    rows, entropy = table(episodes), jnp.asarray(np.random.default_rng(0).gamma(1.0, size=16), jnp.float32)
    order = np.random.default_rng(1).permutation(16)
    shuffled = run(jax.tree.map(lambda column: column[order], rows), entropy[order])
    np.testing.assert_allclose(shuffled, run(rows, entropy)[order], rtol=1e-4, atol=1e-5)
    assert np.ptp(shuffled) > 1


@pytest.mark.parametrize("name", RELATIVE)
def test_report_03_two_groups_of_one_prompt(name: str) -> None:
    """Groups with the same first prompt text were merged."""
    failed, solved = returns(0.0, 0.0), returns(1.0, 1.0, group=1)
    assert (
        failed[0].turns[0].prompt == solved[0].turns[0].prompt and failed[0].draw.task == solved[0].draw.task
    )
    np.testing.assert_array_equal(advantages(failed + solved, name), 0)


def test_report_04_longer_episodes_counted_once_per_turn() -> None:
    """Longer episodes counted once per turn."""
    episodes = [episode(0, m, [(1, 1)] * n, reward=float(n == 2)) for m, n in enumerate((2, 1, 2, 1))]
    # the mean is 0.5; counted by turns it would be 2/3
    np.testing.assert_allclose(advantages(episodes, "centred"), [0.5, 0.5, -0.5, 0.5, 0.5, -0.5])


@pytest.mark.parametrize("context", ["step", "conversation"])
def test_report_05_earlier_steps_had_advantage_0(context: str) -> None:
    """In step-wise mode earlier steps trained with advantage 0."""
    episodes = returns(1.0, 0.0, turns=3)
    rows = table(episodes)
    advantage = estimate(rows, settings=GRPO)
    carried = []
    for block in pack(episodes, context).rows:
        ids = jnp.asarray(block.response_id)
        mask = aggregate.token_mask(ids, rows.valid)
        carried += np.asarray(aggregate.to_tokens(advantage, ids, mask))[np.asarray(mask)].tolist()
    sampled = sum(len(turn.response_ids) for t in episodes for turn in t.turns)
    np.testing.assert_allclose(sorted(carried), [-(0.5**0.5)] * 6 + [0.5**0.5] * 6, rtol=1e-5)
    assert len(carried) == sampled


def test_report_06_return_to_go_across_observations() -> None:
    """Return-to-go was reset at observation tokens."""
    t = episode(0, 0, [(2, 2), (3, 1), (2, 2)], reward=1.0)
    rows = table([t])
    assert rows.reward[:3].tolist() == [0, 0, 1]
    to_go = trajectories.discounted(rows.reward, rows.trajectory, rows.turn, rows.valid, discount=0.5)
    np.testing.assert_allclose(to_go[:3], [0.25, 0.5, 1])
    ids = jnp.asarray(pack([t], "conversation").rows[0].response_id)
    tokens = aggregate.to_tokens(to_go, ids, ids >= 0)[0]
    assert tokens[:12].tolist() == [0, 0, 0.25, 0.25, 0, 0, 0, 0.5, 0, 0, 1, 1]


@pytest.mark.parametrize("name", RELATIVE)
def test_report_07_a_missing_reward_poisoned_its_group(name: str) -> None:
    """A NaN or missing reward poisoned its group."""
    whole = returns(1.0, 0.0, 0.5, turns=2)
    expected = advantages(whole, name)
    assert np.isfinite(expected).all() and np.abs(expected).max() > 0.4
    nan = advantages(whole + returns(0.0, 0.0, 0.0, np.nan, turns=2)[3:], name)
    np.testing.assert_allclose(nan, np.r_[expected, 0, 0], rtol=1e-6)
    lost = dataclasses.replace(returns(0.0, 0.0, 0.0, 9.0, turns=2)[3], failed="worker died")
    np.testing.assert_array_equal(advantages([*whole, lost], name), expected)


def test_report_08_dynamic_sampling_looked_at_the_shaped_score() -> None:
    """Dynamic sampling kept all-fail groups whose only difference was the invalid-action penalty."""
    fined, live = returns(0.0, 0.0), returns(1.0, 0.0, group=1)
    fined[0].turns[0].penalty, fined[1].turns[0].shaping = -0.1, -0.5
    rounds = iter([fined, live])
    settings = selection.SelectionSettings(True, 2, 1.0, "stop", (), 0, 1.0)
    selected = selection.select(lambda groups: next(rounds), groups=1, response_limit=8, settings=settings)
    assert [t.outcome for t in selected.trajectories] == [1, 0]
    assert selected.metrics["selection/groups_rejected"] == 1


@pytest.mark.slow
def test_report_09_padding_rows_biased_the_gradient() -> None:
    """Padding rows to a device multiple by copying real rows biased statistics and gradient."""
    episodes = [episode(0, m, [(2, 1 + m)], reward=float(m % 2)) for m in range(5)]
    five = pack(episodes, microbatch_tokens=80, response_bucket=5)
    eight = pack(episodes, microbatch_tokens=80, response_bucket=8, multiple=8)
    assert [b.rows[0].tokens.shape[0] for b in (five, eight)] == [5, 8]
    credit = [estimate(jax.tree.map(jnp.asarray, b.responses), settings=GRPO) for b in (five, eight)]
    np.testing.assert_allclose(credit[1], np.r_[credit[0], 0, 0, 0], rtol=1e-6)
    (loss,), slope = toy.gradients(five, credit[0])
    (padded_loss,), padded_slope = toy.gradients(eight, credit[1])
    assert padded_loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(padded_slope, slope, rtol=1e-5, atol=1e-8)
    assert np.abs(slope).max() > 0.01


def test_report_10_observation_tokens_entered_the_loss() -> None:
    """Observation tokens entered KL or loss."""
    batch = jax.tree.map(jnp.asarray, pack(returns(1.0, 0.0, turns=3), "conversation"))
    (rows,), valid = batch.rows, batch.responses.valid
    counts = aggregate.denominators(rows.response_id, valid)
    advantage = estimate(batch.responses, settings=GRPO)

    @jax.jit
    @jax.value_and_grad
    def run(z: jax.Array) -> jax.Array:
        return toy.share(z, rows, advantage, valid, counts, settings=toy.SETTINGS)

    z, spoken = toy.logits(toy.WEIGHTS, rows), rows.response_id >= 0
    loss, slope = run(z)
    changed, _ = run(jnp.where(spoken[..., None], z, -7 * z + 3))
    assert changed == loss
    np.testing.assert_array_equal(slope[~spoken], 0)
    assert np.abs(slope[spoken]).max(axis=-1).min() > 0, (
        "KL, entropy and surrogate reach every response token"
    )


def test_report_11_a_merged_response_was_cut() -> None:
    """A merged multi-turn response was cut to the per-turn cap, dropping the last actions."""
    tokenizer = scripted.qwen3_tokenizer()
    words = [[*tokenizer.encode(word), scripted.END] for word in ("one", "two", "six")]
    endless = tokenizer.encode("endless")
    t, _ = scripted.play(
        tokenizer, ["a", "b", "c", "d"], [*words, endless], context="conversation", response_limit=4
    )
    (rows,) = pack([t], "conversation", row_buckets=(256,)).rows
    spoken = rows.tokens[rows.response_id >= 0].tolist()
    assert spoken == [*words[0], *words[1], *words[2], *endless[:4]], "16 tokens under a limit of 4 a turn"
    assert [turn.stop for turn in t.turns] == ["stop", "stop", "stop", "length"]
    assert report.rollout_metrics([t], 1.0)["rollout/cut_responses"] == 1


def test_report_12_text_was_tokenised_again() -> None:
    """Text was re-tokenised, ids drifted, KL spiked."""
    tokenizer = Tokenizer.train(["look around"] * 3, vocab_size=300)
    sampled = [i for letter in "look" for i in tokenizer.encode(letter)] + [tokenizer.stop_ids[0]]
    assert tokenizer.encode("look") != sampled[:-1], "the same text, other ids"
    t, seen = scripted.play(tokenizer, ["look around"], [sampled], context="step")
    assert t.turns[0].response == "look"
    (rows,) = pack([t], row_buckets=(32,)).rows
    assert rows.tokens[rows.response_id == 0].tolist() == sampled
    assert rows.tokens[0, : len(seen[0])].tolist() == seen[0]
    np.testing.assert_allclose(rows.logp_sampler[rows.response_id == 0], t.turns[0].logp)


@pytest.mark.parametrize("context", ["step", "conversation"])
def test_report_13_a_template_that_drops_thoughts(context: str) -> None:
    """Qwen3's template strips earlier <think>, so prompt N+1 does not extend prompt N."""
    tokenizer = scripted.qwen3_tokenizer()
    responses = [
        [*tokenizer.encode(f"<think>why {n}</think>\n\nlook"), scripted.END] for n in ("first", "last")
    ]
    t, seen = scripted.play(tokenizer, ["one", "two"], responses, context=context)
    rows = pack([t], context, row_buckets=(256,)).rows
    packed = sorted(r.tokens[b, r.segments[b] > 0].tolist() for r in rows for b in range(len(r.tokens)))
    assert [row for row in packed if row] == sorted(seen)
    texts = [tokenizer.decode(row, show_special=True) for row in seen]
    turns = [
        f"<|im_start|>user\n{o}<|im_end|>\n<|im_start|>assistant\n<think>why {n}</think>\n\nlook<|im_end|>"
        for o, n in (("one", "first"), ("two", "last"))
    ]
    assert texts == (turns if context == "step" else ["\n".join(turns)]), "the thought stays in its row"


def test_report_14_the_end_token_was_masked_as_padding() -> None:
    """Masks inferred from id != pad dropped the end token when pad equals it."""
    tokenizer = scripted.qwen3_tokenizer()
    assert tokenizer.pad_id == scripted.END
    t, _ = scripted.play(tokenizer, ["one"], [[*tokenizer.encode("go"), scripted.END]], context="step")
    zero = episode(1, 0, [(2, 2)])
    zero.turns[0].response_ids[-1] = 0  # the id that fills our blocks, as a sampled token
    batch = jax.tree.map(jnp.asarray, pack([t, zero], row_buckets=(64,), microbatch_tokens=128))
    (rows,), valid = batch.rows, batch.responses.valid
    counts = aggregate.denominators(rows.response_id, valid)
    weights = aggregate.weights(rows.response_id, valid, counts, aggregation="token_mean")
    assert counts.lengths[:2].tolist() == [3, 2]
    for response, last in ((0, scripted.END), (1, 0)):
        at = np.argwhere(rows.response_id == response)[-1]
        assert rows.tokens[*at] == last and weights[*at] == pytest.approx(0.2) and rows.segments[*at] == 1


@pytest.mark.slow
def test_report_15_temperature_missing_from_one_path() -> None:
    """Temperature missing from one log-probability path."""
    tree = params.init(jax.random.key(0), TINY)
    tree["embed"]["weight"] = tree["embed"]["weight"] * 30
    sampler = Generator(TINY, slots=2, length=16, chunk=7, temperature=0.6)
    first = sampler.extend(tree, [0, 1], [[1, 2], [3, 4]], [5, 6], restart=[True, True])
    chunk = sampler.decode(tree, np.ones(2, bool), np.full(2, 8))
    sampled = np.c_[first.tokens, chunk.tokens], np.c_[first.logp, chunk.logp]
    tokens = jnp.asarray(np.c_[[[1, 2], [3, 4]], sampled[0]], jnp.int32)
    row = tokens, jnp.tile(jnp.arange(10), (2, 1)), jnp.ones((2, 10), jnp.int32), jnp.arange(10)[None] > 1
    mask = jnp.broadcast_to(row[3], (2, 10))

    def ratio(temperature: float) -> np.ndarray:
        logp, _ = scoring.score(tree, *row[:3], mask, config=TINY, temperature=temperature, block=32)
        return np.exp(np.asarray(logp)[:, 2:] - sampled[1])

    np.testing.assert_allclose(ratio(0.6), 1, atol=1e-4)
    assert np.abs(ratio(1.0) - 1).max() > 0.1


@pytest.mark.slow
def test_report_16_the_loss_depended_on_the_split() -> None:
    """The loss depended on the micro-batch split."""
    episodes = [episode(0, 0, [(2, 1)], reward=1.0), episode(0, 1, [(2, 3)])]
    whole, parts = pack(episodes, microbatch_tokens=32), pack(episodes, microbatch_tokens=16)
    assert (len(whole.rows), len(parts.rows)) == (1, 2)
    settings = tuple(dataclasses.replace(toy.SETTINGS, aggregation=name) for name in aggregate.AGGREGATIONS)
    advantage = estimate(table(episodes), settings=GRPO)
    losses, slopes = toy.gradients(whole, advantage, settings)
    split_losses, split_slopes = toy.gradients(parts, advantage, settings)
    np.testing.assert_allclose(split_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(split_slopes, slopes, rtol=1e-5, atol=1e-8)
    assert len({round(float(x), 4) for x in losses}) == 4, "the aggregations differ"


def test_report_17_logits_of_all_tokens_ran_out_of_memory() -> None:
    """Full-vocabulary float32 logits ran out of memory (112 GB at 32k x 152k)."""
    vocabulary, width = 4096, 4

    def planned(length: int, block: int) -> int:
        """Bytes that the compiler sets aside for the score and its gradient."""

        def loss(hidden: jax.Array, weight: jax.Array) -> jax.Array:
            tokens, mask = jnp.zeros((1, length), jnp.int32), jnp.ones((1, length), bool)
            tree = {"embed": {"weight": weight}}
            logp, entropy = scoring.score_hidden(tree, hidden, tokens, mask, temperature=1.0, block=block)
            return jnp.sum(logp + entropy)

        shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((1, length, width), (vocabulary, width))]
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*shapes).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long, wide = planned(128, 16), planned(1024, 16), planned(1024, 256)
    assert long < 2 * short, "eight times the tokens"
    assert wide > 4 * long, "sixteen times the block"
    assert long < 1024 * vocabulary * 4 / 8


@pytest.mark.parametrize("tied", [True, False])
def test_report_18_tied_embeddings_were_exported_wrongly(tied: bool, tmp_path: Path) -> None:
    """Tied embeddings exported without, or untied with a wrong, output head."""
    config = dataclasses.replace(TINY, tied_head=tied)
    tree = params.init(jax.random.key(1), config)
    hidden = jax.random.normal(jax.random.key(2), (1, 3, 16))
    names = []
    for place in ("one", "two"):
        pretrained.export(tree, config, None, tmp_path / place)
        loaded, config = pretrained.load(tmp_path / place)
        np.testing.assert_array_equal(layers.logits(loaded, hidden), layers.logits(tree, hidden))
        with safetensors.Reader(tmp_path / place) as reader:
            names.append(reader.names())
        tree = loaded
    assert names[0] == names[1] and ("lm_head.weight" in names[0]) == (not tied)
    assert config.tied_head == tied


@pytest.mark.slow
def test_report_19_resume_lost_its_place(tmp_path: Path) -> None:
    """Resume lost data order, RNG or Adam state. (After kill -9, of the whole program: tests/e2e/test_run.py.)"""
    aem = AemSettings(threshold=0.0, scope="group", reverse=False, shuffle=True, proxy="entropy", mix=0.5)
    credit, free = CreditSettings(GRPO, "advantage", aem), dataclasses.replace(toy.SETTINGS, kl_coef=0.0)
    settings = LearnerSettings(credit, 0, free, temperature=1.0, epochs=1, block=32, remat="none")

    def new() -> Learner:
        return Learner(TINY, settings, optax.adamw(1e-2), mesh=make_mesh(1, 1, 1, jax.devices()[:1]), seed=0)

    def train(learner: Learner, state: Any, iterations: range, cursor: int) -> tuple[Any, int]:
        for i in iterations:
            episodes = []
            for d in draws([str(n) for n in range(5)], groups=2, members=2, iteration=i, cursor=cursor):
                played = episode(int(d.task), d.member, [(2, 3), (1, 2)], reward=float(d.member), seed=d.seed)
                episodes.append(dataclasses.replace(played, draw=d))
            batch = pack(episodes, microbatch_tokens=128, minibatch_responses=4, seed=i)
            state, credited = learner.credit(state, learner.score(state, learner.place(batch)), i)
            state, _ = learner.update(state, credited)
            cursor += 2
        return state, cursor

    learner, start = new(), params.init(jax.random.key(0), TINY)
    state, cursor = train(learner, learner.init(jax.tree.map(jnp.copy, start)), range(3), 0)
    with Checkpoints(tmp_path) as kept:
        kept.save(3, state, {"task_cursor": cursor}, tokenizer=None)
    whole, _ = train(learner, state, range(3, 6), cursor)
    with Checkpoints(tmp_path) as kept:
        again = new()
        restored = kept.restore(again.like())
    assert restored is not None
    resumed, _ = train(again, restored[1], range(restored[0], 6), restored[2]["task_cursor"])
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    assert int(whole.step) == 12
    assert np.abs(whole.params["layers"]["wq"] - start["layers"]["wq"]).max() > 1e-2


def test_report_20_two_groups_of_the_same_task() -> None:
    """16 draws with replacement gave one group of 16."""
    drawn = draws(["the only task"], groups=16, members=2)
    assert {d.task for d in drawn} == {"the only task"} and len({d.seed for d in drawn}) == 32
    reward = {(d.group, d.member): float(d.group) for d in drawn} | {(15, 1): 0.0}
    episodes = [episode(d.group, d.member, [(1, 1)], reward=reward[d.group, d.member]) for d in drawn]
    np.testing.assert_allclose(advantages(episodes, "centred"), [0] * 30 + [7.5, -7.5], atol=1e-6)
