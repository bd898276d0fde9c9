import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import params, scoring
from model.config import ModelConfig
from model.generate import Buckets, Generator
from sharding.mesh import make_mesh

CONFIG = ModelConfig(
    vocab_size=31, width=16, layers=2, heads=4, kv_heads=2, head_size=4, hidden=24, qk_norm=True
)
STOP = (3, 5)
LENGTH = 40


@functools.cache
def tree(seed=0):
    """Sharper than at initialisation, so that a wrong context shows in the log-probabilities."""
    made = params.init(jax.random.key(seed), CONFIG)
    made["embed"]["weight"] = made["embed"]["weight"] * 30
    return made


def generator(slots, config=CONFIG, **settings):
    defaults = dict(slots=slots, length=LENGTH, chunk=3, stop_ids=STOP, buckets=Buckets(widths=(4,)))
    return Generator(config, **{**defaults, **settings})


# For what does not hang on depth: half the compilation.
SHALLOW = dataclasses.replace(CONFIG, layers=1)


@functools.cache
def shallow_tree():
    return params.init(jax.random.key(0), SHALLOW)


class Conversation:
    """What a rollout keeps of one slot: the ids, which were sampled, and their log-probabilities."""

    def __init__(self):
        self.ids, self.sampled, self.logp, self.ended = [], [], [], []

    def add(self, ids, logp=None):
        self.ids += [int(x) for x in ids]
        self.sampled += [logp is not None] * len(ids)
        self.logp += [float(x) for x in logp] if logp is not None else [0.0] * len(ids)


def play(made, rows, turns=3, limit=7, seed=0):
    """Several turns of unlike prompts in `rows`, the second conversation restarted at turn 1."""
    prompts = np.random.default_rng(seed)
    talks = [Conversation() for _ in rows]
    for turn in range(turns):
        texts = [prompts.integers(0, 31, prompts.integers(1, 9)).tolist() for _ in rows]
        restart = [turn == 0 or (turn == 1 and i == 1) for i in range(len(rows))]
        first = made.extend(tree(), rows, texts, [1000 * i + turn for i in range(len(rows))], restart=restart)
        active = np.zeros(made.slots, bool)
        for i, row in enumerate(rows):
            if restart[i]:
                talks[i] = Conversation()
            if first.full[i]:
                talks[i].ended.append("full")
                continue
            talks[i].add(texts[i])
            talks[i].add([first.tokens[i]], [first.logp[i]])
            active[row] = not first.stopped[i]
        while active.any():
            chunk = made.decode(tree(), active, np.full(made.slots, limit))
            for i, row in enumerate(rows):
                count = chunk.counts[row]
                talks[i].add(chunk.tokens[row, :count], chunk.logp[row, :count])
                assert np.all(chunk.tokens[row, count:] == -1) and np.all(chunk.logp[row, count:] == 0)
            active &= ~chunk.stopped & ~chunk.full & (chunk.counts > 0)
    return talks


def scored(talks, temperature):
    """The same log-probabilities by the scorer, and their largest difference."""
    length = max(len(talk.ids) for talk in talks)
    tokens, segments, mask = np.zeros((3, len(talks), length), np.int32)
    for b, talk in enumerate(talks):
        count = len(talk.ids)
        tokens[b, :count], segments[b, :count], mask[b, :count] = talk.ids, 1, talk.sampled
    positions = np.tile(np.arange(length, dtype=np.int32), (len(talks), 1))
    logp, _ = scoring.score(
        tree(), *map(jnp.asarray, (tokens, positions, segments, mask.astype(bool))), config=CONFIG,
        temperature=temperature, block=64,
    )  # fmt: skip
    return max(np.abs(np.asarray(logp)[b, : len(t.ids)] - t.logp).max() for b, t in enumerate(talks))


@pytest.fixture(scope="module")
def baseline():
    """All slots computed at every call, the whole cache attended to."""
    made = generator(5)
    return made, play(made, [0, 1, 2, 3, 4])


def test_cached_equals_the_full_forward(baseline):
    _, talks = baseline
    assert scored(talks, 1.0) < 1e-4
    assert sum(sum(talk.sampled) for talk in talks) > 40


@pytest.mark.slow
def test_samples_depend_neither_on_slots_nor_on_buckets_nor_on_neighbours(baseline):
    _, want = baseline
    made = generator(12, buckets=Buckets(rows=(2, 6), widths=(4, 16), pasts=(12,)), chunk=5)
    got = play(made, [9, 3, 11, 1, 0])
    assert [talk.ids for talk in got] == [talk.ids for talk in want]
    assert max(np.abs(np.subtract(a.logp, b.logp)).max() for a, b in zip(got, want, strict=True)) < 1e-4


def test_temperature_changes_without_compilation(baseline):
    made, sampled = baseline
    before = made.compilations()
    made.temperature = 0.0
    greedy = [play(made, [0, 1, 2, 3, 4]) for _ in range(2)]
    made.temperature = 1.0
    assert [talk.ids for talk in greedy[0]] == [talk.ids for talk in greedy[1]]
    assert scored(greedy[0], 1.0) < 1e-4
    again = play(made, [0, 1, 2, 3, 4])
    assert [talk.ids for talk in again] == [talk.ids for talk in sampled]
    assert made.compilations() == before


def test_new_parameters_are_used_without_compilation(baseline):
    made, _ = baseline
    old = made.extend(tree(), [0], [[1, 2]], [7], restart=[True])
    before = made.compilations()
    new = made.extend(tree(1), [0], [[1, 2]], [7], restart=[True])
    assert old.logp[0] != new.logp[0]
    assert made.compilations() == before
    made.release()


def test_limits_and_stops():
    made = generator(2, SHALLOW, stop_ids=())
    made.extend(shallow_tree(), [0, 1], [[1], [2]], [0, 1], restart=[True, True])
    chunk = made.decode(shallow_tree(), np.array([True, True]), np.array([2, 1]))
    assert chunk.counts.tolist() == [1, 0]  # the token of `extend` counts
    chunk = made.decode(shallow_tree(), np.array([True, False]), np.array([9, 9]))
    assert chunk.counts.tolist() == [3, 0] and not chunk.stopped.any() and not chunk.full.any()
    token = int(chunk.tokens[0, 1])

    made = generator(2, SHALLOW, stop_ids=(token,))
    first = made.extend(shallow_tree(), [0], [[1]], [0], restart=[True])
    ids = [int(first.tokens[0])]
    while not first.stopped[0]:
        chunk = made.decode(shallow_tree(), np.array([True, False]), np.array([30, 30]))
        ids += chunk.tokens[0, : chunk.counts[0]].tolist()
        if chunk.stopped[0]:
            break
    assert ids[-1] == token and token not in ids[:-1]


@pytest.mark.slow
def test_a_full_cache_is_told_and_changes_nothing():
    made = generator(2, SHALLOW, length=8, stop_ids=(), chunk=6)
    first = made.extend(shallow_tree(), [0, 1], [[1] * 5, [2] * 9], [0, 1], restart=[True, True])
    assert first.full.tolist() == [False, True] and first.tokens[1] == -1
    assert made.room(0) == 2
    chunk = made.decode(shallow_tree(), np.array([True, False]), np.array([99, 99]))
    # Three tokens are fed into the three places left; the third one sampled has none.
    assert chunk.counts.tolist() == [3, 0] and chunk.full.tolist() == [True, False]
    assert made.decode(shallow_tree(), np.array([True, False]), np.array([99, 99])).full[0]
    assert made.extend(shallow_tree(), [0], [[1]], [0], restart=[False]).full[0]
    assert not made.extend(shallow_tree(), [0], [[1]], [0], restart=[True]).full[0]


def test_errors():
    made = generator(2)
    with pytest.raises(ValueError, match="repeat a slot"):
        made.extend(tree(), [0, 0], [[1], [1]], [0, 1], restart=[True, True])
    with pytest.raises(ValueError, match="2 rows, 1 prompts"):
        made.extend(tree(), [0, 1], [[1]], [0, 1], restart=[True, True])
    with pytest.raises(ValueError, match="nothing to predict from"):
        made.extend(tree(), [0], [[]], [0], restart=[True])
    with pytest.raises(ValueError, match="have no response"):
        made.decode(tree(), np.array([True, False]), np.array([1, 1]))
    with pytest.raises(ValueError, match="max_positions"):
        Generator(CONFIG, slots=1, length=10**6, chunk=1)


def test_top_p_is_applied():
    made = generator(1, SHALLOW, top_p=1e-6, stop_ids=())
    first = made.extend(shallow_tree(), [0], [[1, 2]], [5], restart=[True])
    greedy = generator(1, SHALLOW, temperature=0.0, stop_ids=()).extend(
        shallow_tree(), [0], [[1, 2]], [6], restart=[True]
    )
    assert first.tokens[0] == greedy.tokens[0]


@pytest.mark.slow
def test_mesh_gives_the_same_samples(baseline):
    if len(jax.devices()) < 8:
        pytest.skip("needs 8 (fake) devices")
    mesh = make_mesh(2, 2, 2, jax.devices()[:8])
    made = generator(8, mesh=mesh, buckets=Buckets(rows=(2,), widths=(4,)))
    assert made._cache.keys[0].sharding.shard_shape(made._cache.keys[0].shape) == (2, 1, 4, LENGTH)
    # Parameters arrive split as the trainer has them.
    sharded = jax.device_put(tree(), params.shardings(CONFIG, mesh))
    prompts, seeds = [[1, 2, 3], [4], [5, 6]], [1, 2, 3]
    results = []
    for each, weights, rows in ((made, sharded, [6, 0, 3]), (baseline[0], tree(), [0, 1, 2])):
        first = each.extend(weights, rows, prompts, seeds, restart=[True] * 3)
        active = np.zeros(each.slots, bool)
        active[rows] = ~first.stopped
        chunk = each.decode(weights, active, np.full(each.slots, 9))
        results.append((first.tokens, first.logp, chunk.tokens[rows], chunk.logp[rows]))
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4)
    with pytest.raises(ValueError, match="must divide by shards=4"):
        generator(6, mesh=mesh)


@pytest.mark.slow
def test_bfloat16_runs():
    config = dataclasses.replace(SHALLOW, dtype="bfloat16", qk_norm=False, qkv_bias=True, tied_head=False)
    made = Generator(config, slots=1, length=8, chunk=2)
    weights = params.init(jax.random.key(0), config)
    first = made.extend(weights, [0], [[1, 2]], [0], restart=[True])
    chunk = made.decode(weights, np.array([True]), np.array([3]))
    assert chunk.counts[0] == 2 and np.isfinite(first.logp).all() and np.isfinite(chunk.logp).all()
