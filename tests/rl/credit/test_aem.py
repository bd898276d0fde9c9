"""Adaptive entropy modulation: numbers, an independent float64 reference, laws, edge cases and the extensions."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import aem

SIZE = 48  # every table is padded to it, so few shapes are compiled
# three responses of a group at normalised entropy 0, 1/2 and 1, lam 1: exp(-H) over its mean 0.658137
NUMBERS = [1.519441, 0.921589, 0.558970]


def arrays(entropy, group, trajectory, valid=None, size=SIZE):
    """Table columns, padded with copies of row 0 that hold NaN and are not valid."""
    extra = size - len(entropy)
    valid = np.ones(len(entropy), bool) if valid is None else valid
    return (
        jnp.asarray(np.r_[entropy, [np.nan] * extra], jnp.float32),
        jnp.asarray(np.r_[group, [group[0]] * extra], jnp.int32),
        jnp.asarray(np.r_[trajectory, [trajectory[0]] * extra], jnp.int32),
        jnp.asarray(np.r_[valid, [False] * extra], bool),
    )


def alphas(entropy, group, trajectory, valid=None, key=None, **switches):
    """Alpha of the rows given, as numpy; padding rows must have 1."""
    result = np.asarray(aem.modulation(*arrays(entropy, group, trajectory, valid), key, **switches))
    assert (result[len(entropy) :] == 1).all()
    return result[: len(entropy)]


@jax.jit
def all_scopes(entropy, group, trajectory, valid):
    """Alpha in every scope, then shuffled: one compilation a shape."""
    table = (entropy, group, trajectory, valid)
    plain = [aem.modulation(*table, scope=scope) for scope in aem.SCOPES]
    return [*plain, aem.modulation(*table, jax.random.key(7), shuffle=True)]


def scope_of(scope, group, trajectory):
    return {"group": group, "trajectory": trajectory, "batch": np.zeros_like(group)}[scope]


def reference(entropy, ids, valid, *, lam=1.0, threshold=0.1, eps=1e-8):
    """The five steps in float64, a scope at a time; no shared code."""
    alpha = np.ones(len(entropy))
    for i in set(ids[valid]):
        members = [r for r in range(len(ids)) if valid[r] and ids[r] == i]
        h = np.array([float(entropy[r]) for r in members])
        if h.max() - h.min() < threshold:
            continue
        raw = np.exp(-lam * (h - h.min()) / (h.max() - h.min() + eps))
        alpha[members] = raw / (raw.mean() + eps)
    return alpha


def ragged(seed):
    """4 groups of 1 to 4 trajectories of 1 to 3 turns in random order; one has a range below the threshold."""
    random = np.random.default_rng(seed)
    rows, trajectory = [], 0
    for g in range(4):
        for _ in range(random.integers(1, 5)):
            for _ in range(random.integers(1, 4)):
                width = 0.05 if g == 3 else 2.0
                rows.append((1 + width * random.random(), g, trajectory, random.random() < 0.85))
            trajectory += 1
    random.shuffle(rows)
    entropy, group, trajectory, valid = (np.array(column) for column in zip(*rows, strict=True))
    return np.where(valid, entropy, np.nan).astype(np.float32), group, trajectory, valid


# response means


def test_response_mean_numbers():
    values = jnp.array([[9.0, 1.0, 2.0, 9.0, 4.0], [3.0, 9.0, 9.0, 5.0, 7.0]])
    response_id = jnp.array([[-1, 0, 0, -1, 1], [3, -1, -1, 2, 2]])
    mean = aem.response_mean(values, response_id, num_responses=5)
    np.testing.assert_allclose(mean, [1.5, 4, 6, 3, 0])
    first = aem.response_mean(values, response_id, num_responses=5, first_k=1)
    np.testing.assert_allclose(first, [1, 4, 5, 3, 0])


def test_response_mean_against_float64_and_over_micro_batches():
    random = np.random.default_rng(0)
    values = random.gamma(1.0, 1.0, (6, 20)).astype(np.float32)
    response_id = np.full((6, 20), -1)
    for r in range(12):  # two responses a row, lengths 1 to 8
        start = 10 * (r % 2) + random.integers(0, 3)
        response_id[r // 2, start : start + random.integers(1, 8)] = r
    values[response_id < 0] = np.nan  # a NaN outside every response must not leak

    def run(rows, first_k):
        ids = jnp.asarray(np.where(rows[:, None], response_id, -1))
        return aem.response_mean(jnp.asarray(values), ids, num_responses=14, first_k=first_k)

    rows = np.arange(6)
    for first_k in (0, 1, 3):
        expected = [
            values[response_id == r][: first_k or None].astype(np.float64).mean() if r < 12 else 0
            for r in range(14)
        ]
        np.testing.assert_allclose(run(rows < 6, first_k), expected, rtol=1e-6)
        np.testing.assert_allclose(run(rows < 3, first_k) + run(rows >= 3, first_k), expected, rtol=1e-6)


def test_response_mean_does_not_depend_on_length_and_is_float32():
    values = jnp.full((1, 600), 0.3, jnp.bfloat16)
    response_id = jnp.asarray(np.r_[0, np.full(599, 1)][None])
    mean = aem.response_mean(values, response_id, num_responses=2)
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(mean[1], mean[0], rtol=1e-6)


def test_nan_in_a_masked_token_reaches_neither_value_nor_gradient():
    values = jnp.array([[jnp.nan, 1.0, 3.0, jnp.inf]])
    response_id = jnp.array([[-1, 0, 0, -1]])
    run = jax.jit(
        jax.value_and_grad(lambda v: aem.response_mean(v, response_id, num_responses=1, first_k=2).sum())
    )
    mean, gradient = run(values)
    assert mean == 2
    np.testing.assert_array_equal(gradient, [[0, 0.5, 0.5, 0]])


# numbers and reference


def test_alpha_numbers():
    np.testing.assert_allclose(alphas([0.2, 0.7, 1.2], [0] * 3, [0, 1, 2]), NUMBERS, rtol=1e-5)
    # lam 2: exp(0), exp(-1), exp(-2) over 0.501072
    double = alphas([0.2, 0.7, 1.2], [0] * 3, [0, 1, 2], lam=2.0)
    np.testing.assert_allclose(double, [1.995722, 0.734185, 0.270092], rtol=1e-5)
    # reverse: exp(0), exp(1/2), exp(1) over 1.789001
    reverse = alphas([0.2, 0.7, 1.2], [0] * 3, [0, 1, 2], reverse=True)
    np.testing.assert_allclose(reverse, [0.558970, 0.921589, 1.519441], rtol=1e-5)


@pytest.mark.parametrize("scope", aem.SCOPES)
def test_against_float64_reference(scope):
    for seed in range(5):
        entropy, group, trajectory, valid = ragged(seed)
        ids = scope_of(scope, group, trajectory)
        for lam, threshold in ((1.0, 0.1), (0.5, 0.0), (-1.0, 0.8)):
            result = alphas(entropy, group, trajectory, valid, scope=scope, lam=lam, threshold=threshold)
            expected = reference(entropy, ids, valid, lam=lam, threshold=threshold)
            np.testing.assert_allclose(result, expected, rtol=2e-5)
            assert np.abs(result[~valid] - 1).sum() == 0


# laws


@pytest.mark.parametrize("scope", aem.SCOPES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_mean_alpha_is_1_in_every_scope(scope, shuffle):
    for seed in range(3):
        entropy, group, trajectory, valid = ragged(seed)
        alpha = alphas(
            entropy,
            group,
            trajectory,
            valid,
            jax.random.key(seed),
            scope=scope,
            shuffle=shuffle,
            threshold=0.0,
        )
        # a permutation within groups keeps the means of groups and batch, not those of trajectories
        ids = scope_of("group" if shuffle and scope == "trajectory" else scope, group, trajectory)
        for i in set(ids[valid]):
            assert abs(alpha[valid & (ids == i)].mean() - 1) < 1e-5
        assert np.ptp(alpha[valid]) > 0.2


def test_lower_entropy_gives_larger_alpha_and_reverse_the_opposite():
    entropy = np.random.default_rng(1).permutation(np.linspace(0.1, 2.0, 20))
    ordered = np.argsort(entropy)
    alpha = alphas(entropy, [0] * 20, np.arange(20))
    assert (np.diff(alpha[ordered]) < 0).all()
    assert (np.diff(alphas(entropy, [0] * 20, np.arange(20), reverse=True)[ordered]) > 0).all()
    assert alpha[ordered[0]] / alpha[ordered[-1]] == pytest.approx(np.e, rel=1e-5)


def test_lam_0_is_off_and_reverse_is_minus_lam():
    data = ragged(0)
    np.testing.assert_allclose(alphas(*data, lam=0.0), 1, rtol=1e-6)
    np.testing.assert_array_equal(alphas(*data, reverse=True, lam=0.7), alphas(*data, lam=-0.7))


def test_shift_and_scale_of_a_groups_entropies_change_nothing_above_the_threshold():
    entropy, group, trajectory, valid = ragged(2)
    base = alphas(entropy, group, trajectory, valid, threshold=0.0)
    shifted = alphas(entropy + 3 * (group == 1), group, trajectory, valid, threshold=0.0)
    np.testing.assert_allclose(shifted, base, rtol=1e-5)
    scaled = alphas(4 * entropy, group, trajectory, valid, threshold=0.0)
    np.testing.assert_allclose(scaled, base, rtol=1e-5)


def test_row_order_never_matters():
    for scope in aem.SCOPES:
        data = ragged(3)
        order = np.random.default_rng(0).permutation(len(data[0]))
        shuffled = alphas(*(column[order] for column in data), scope=scope)
        np.testing.assert_allclose(shuffled, alphas(*data, scope=scope)[order], rtol=1e-5)


def test_groups_do_not_see_each_other():
    entropy, group, trajectory, valid = ragged(4)
    changed = np.where(group == 2, entropy * 5 + 1, entropy)
    base, other = alphas(entropy, group, trajectory, valid), alphas(changed, group, trajectory, valid)
    np.testing.assert_array_equal(base[group != 2], other[group != 2])


def test_scopes_nest_batch_of_one_group_and_group_of_one_trajectory():
    entropy, _, trajectory, valid = ragged(5)
    zeros = np.zeros_like(trajectory)
    one_group = alphas(entropy, zeros, trajectory, valid, scope="group")
    np.testing.assert_array_equal(alphas(entropy, zeros, trajectory, valid, scope="batch"), one_group)
    of_trajectories = alphas(entropy, zeros, trajectory, valid, scope="trajectory")
    np.testing.assert_array_equal(
        alphas(entropy, trajectory, trajectory, valid, scope="group"), of_trajectories
    )
    assert np.abs(one_group - of_trajectories).max() > 0.1


def test_padding_rows_have_no_effect():
    entropy, group, trajectory = [0.3, 1.5, 0.9, 0.2, 0.6], [0, 0, 0, 1, 1], [0, 0, 1, 2, 3]
    five, padded = (all_scopes(*arrays(entropy, group, trajectory, size=size)) for size in (5, 8))
    for alone, more in zip(five, padded, strict=True):
        np.testing.assert_allclose(more, np.r_[alone, 1, 1, 1], rtol=1e-6)
        assert np.ptp(alone) > 0.3


# guard


def test_guard_leaves_a_group_of_small_range_alone_and_is_per_scope():
    # group 0: range 0.09; group 1: range 1. Trajectory 3 alone has range 0.05.
    entropy, group, trajectory = [0.50, 0.59, 0.1, 1.1, 0.6, 0.65], [0, 0, 1, 1, 1, 1], [0, 1, 2, 2, 3, 3]
    alpha = alphas(entropy, group, trajectory)
    np.testing.assert_array_equal(alpha[:2], 1)
    assert np.abs(alpha[2:4] - 1).min() > 0.2
    by_trajectory = alphas(entropy, group, trajectory, scope="trajectory")
    np.testing.assert_array_equal(by_trajectory[[0, 1, 4, 5]], 1)
    np.testing.assert_allclose(by_trajectory[2:4], [1.462117, 0.537883], rtol=1e-5)
    # the batch's range is 1, so nobody is spared
    assert np.abs(alphas(entropy, group, trajectory, scope="batch") - 1).min() > 0.01
    # the paper's inequality is strict: a range equal to the threshold acts
    assert alphas([0.0, 0.5], [0, 0], [0, 1], threshold=0.5)[0] > 1.4
    np.testing.assert_array_equal(alphas([0.0, 0.5], [0, 0], [0, 1], threshold=0.501), 1)


@pytest.mark.parametrize("eps", [1e-8, 0.0])
def test_one_response_and_equal_entropies_give_exactly_1_without_a_guard(eps):
    alpha = alphas([0.7, 0.4, 0.4, 0.4], [0, 1, 1, 1], [0, 1, 2, 3], threshold=0.0, eps=eps)
    np.testing.assert_array_equal(alpha, 1)


def test_a_batch_without_valid_rows_is_1():
    for scope in aem.SCOPES:
        alpha = alphas([np.nan, np.inf, 1.0], [0, 0, 1], [0, 1, 2], [False] * 3, scope=scope)
        np.testing.assert_array_equal(alpha, 1)


def test_nan_of_a_masked_row_does_not_leak():
    clean = alphas([0.2, 0.7, 1.2], [0] * 3, [0, 1, 2])
    dirty = alphas(
        [0.2, np.nan, 0.7, np.inf, 1.2], [0] * 5, [0, 9, 1, 8, 2], [True, False, True, False, True]
    )
    np.testing.assert_array_equal(dirty, [clean[0], 1, clean[1], 1, clean[2]])


def test_alpha_carries_no_gradient_to_entropy_or_lam():
    entropy, *rest = arrays([0.2, 0.7, 1.2], [0] * 3, [0, 1, 2])
    run = jax.jit(jax.grad(lambda h, lam: jnp.sum(aem.modulation(h, *rest, lam=lam) ** 2), argnums=(0, 1)))
    gradients = run(entropy, jnp.float32(1))
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)


# shuffle


def test_shuffle_permutes_within_groups_and_depends_on_the_key_only():
    entropy, group, trajectory, valid = ragged(6)
    base = alphas(entropy, group, trajectory, valid)
    key = jax.random.key(3)
    one = alphas(entropy, group, trajectory, valid, key, shuffle=True)
    for g in range(4):
        member = valid & (group == g)
        np.testing.assert_array_equal(np.sort(one[member]), np.sort(base[member]))
    np.testing.assert_array_equal(one[~valid], 1)
    assert (one != base).any()
    np.testing.assert_array_equal(alphas(entropy, group, trajectory, valid, key, shuffle=True), one)
    assert (alphas(entropy, group, trajectory, valid, jax.random.key(4), shuffle=True) != one).any()


def test_shuffle_is_uniform_over_permutations():
    data = arrays([0.0, 0.5, 1.0, 9.0], [0, 0, 0, 1], [0, 1, 2, 3], size=4)
    keys = jax.random.split(jax.random.key(0), 3000)
    drawn = jax.jit(jax.vmap(lambda key: aem.modulation(*data, key, shuffle=True)))(keys)
    _, counts = np.unique(np.asarray(drawn)[:, :3], axis=0, return_counts=True)
    assert len(counts) == 6
    assert np.abs(counts - 500).max() < 110  # 5 standard deviations
    np.testing.assert_array_equal(drawn[:, 3], 1)


def test_shuffle_without_a_key_is_refused():
    with pytest.raises(ValueError, match="needs a key"):
        alphas([0.2, 0.7], [0, 0], [0, 1], shuffle=True)


# devices and compilation


def test_a_group_split_over_8_devices_equals_one_device():
    data = arrays(*ragged(7))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    assert mesh.size == 8
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    split = all_scopes(*(jax.device_put(column, sharding) for column in data))
    for many, one in zip(split, all_scopes(*data), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-6)
        assert np.ptp(one) > 0.3


def test_a_schedule_of_lam_does_not_retrace():
    traces = []
    data = arrays([0.2, 0.7, 1.2], [0] * 3, [0, 1, 2])

    @jax.jit
    def f(lam):
        traces.append(1)
        return aem.modulation(*data, lam=lam)

    np.testing.assert_allclose(f(jnp.float32(1))[:3], NUMBERS, rtol=1e-5)
    np.testing.assert_allclose(f(jnp.float32(0))[:3], 1, rtol=1e-6)
    assert len(traces) == 1


# extensions and settings


def settings(**changes):
    values = {
        "threshold": 0.1,
        "scope": "group",
        "reverse": False,
        "shuffle": False,
        "proxy": "entropy",
        "mix": 0.5,
    }
    return aem.AemSettings(**(values | changes))


def modulate(
    entropy, surprisal, group, trajectory, outcome=None, lam=1.0, previous=None, key=None, **changes
):
    value, group, trajectory, valid = arrays(entropy, group, trajectory)
    extra = [np.nan] * (SIZE - len(entropy))
    outcome = jnp.zeros(SIZE) if outcome is None else jnp.asarray(np.r_[outcome, extra], jnp.float32)
    table = SimpleNamespace(outcome=outcome, group=group, trajectory=trajectory, valid=valid)
    surprisal = jnp.asarray(np.r_[surprisal, extra], jnp.float32)
    return aem.modulate(
        value, surprisal, table, jnp.float32(lam), key, previous, settings=settings(**changes)
    )


def test_modulate_with_everything_off_is_the_papers_alpha():
    result = modulate([0.2, 0.7, 1.2], [9.0, 9.0, 9.0], [0] * 3, [0, 1, 2])
    np.testing.assert_allclose(result.alpha[:3], NUMBERS, rtol=1e-5)
    np.testing.assert_array_equal(result.lam, 1)
    np.testing.assert_allclose(result.threshold, 0.1)


@pytest.mark.parametrize("switch", ["reverse", "shuffle", "scope", "threshold", "lam"])
def test_modulate_passes_every_switch_on(switch):
    data, key = ([0.2, 0.7, 1.2, 0.5], [0] * 4, [0, 1, 2, 2]), jax.random.key(5)
    changes = {"reverse": True, "shuffle": True, "scope": "trajectory", "threshold": 0.6, "lam": 0.3}
    change = {switch: changes[switch]}
    result = modulate(data[0], [0.0] * 4, *data[1:], key=key, **change)
    np.testing.assert_allclose(result.alpha[:4], alphas(*data, None, key, **change), rtol=1e-6)
    if switch != "threshold":
        assert np.abs(result.alpha[:4] - alphas(*data)).max() > 0.1


def test_proxies():
    entropy, surprisal = [0.2, 0.7, 1.2], [1.4, 0.7, 0.0]
    by_surprisal = modulate(entropy, surprisal, [0] * 3, [0, 1, 2], proxy="surprisal")
    np.testing.assert_allclose(by_surprisal.alpha[:3], NUMBERS[::-1], rtol=1e-5)
    mixed = modulate(entropy, surprisal, [0] * 3, [0, 1, 2], proxy="mix", mix=0.25)
    np.testing.assert_allclose(mixed.proxy[:3], [0.5, 0.7, 0.9], rtol=1e-6)
    np.testing.assert_allclose(mixed.alpha[:3], NUMBERS, rtol=1e-5)
    with pytest.raises(ValueError, match=r"unknown proxy kind='margin'; known: entropy, surprisal, mix"):
        aem.proxy(jnp.zeros(1), jnp.zeros(1), kind="margin")


def test_adaptive_threshold_is_the_quantile_of_the_ranges_of_groups_with_two_responses():
    # ranges 0.2, 0.4, 1.0 and a group of one, which has none; median 0.4
    entropy, group = [1.0, 1.2, 1.0, 1.4, 1.0, 2.0, 5.0], [0, 0, 1, 1, 2, 2, 3]
    ranges, present = aem.scope_ranges(*arrays(entropy, group, range(7)))
    np.testing.assert_allclose(ranges[:4], [0.2, 0.4, 1.0, 0], rtol=1e-5)
    np.testing.assert_array_equal(present[:5], [True, True, True, False, False])
    result = modulate(entropy, [0.0] * 7, group, range(7), quantile=0.5)
    np.testing.assert_allclose(result.threshold, 0.4, rtol=1e-5)
    np.testing.assert_array_equal(result.alpha[:2], 1)  # below
    assert np.abs(result.alpha[2:6] - 1).min() > 0.4  # at and above
    assert result.alpha[6] == 1


def test_adaptive_threshold_follows_earlier_ones():
    entropy, group = [1.0, 1.2, 1.0, 1.4, 1.0, 2.0], [0, 0, 1, 1, 2, 2]
    run = {
        "surprisal": [0.0] * 6,
        "group": group,
        "trajectory": range(6),
        "quantile": 0.5,
        "quantile_decay": 0.75,
    }
    first = modulate(entropy, previous=jnp.float32(np.nan), **run)
    np.testing.assert_allclose(first.threshold, 0.4, rtol=1e-5)
    second = modulate(entropy, previous=jnp.float32(0.8), **run)
    np.testing.assert_allclose(second.threshold, 0.75 * 0.8 + 0.25 * 0.4, rtol=1e-5)
    # a batch without a range keeps what is known
    empty = arrays([1.0, 2.0], [0, 1], [0, 1])
    kept = aem.adaptive_threshold(*empty, jnp.float32(0.8), quantile=0.5, decay=0.75)
    np.testing.assert_allclose(kept, 0.8)
    assert aem.adaptive_threshold(*empty, quantile=0.5) == 0


def test_lam_shrinks_by_the_share_of_variance_that_is_noise():
    # returns 10, 0 (variance 50, each trajectory once); 1, 1 (variance 0); group of one
    entropy = [0.2, 0.7, 1.2, 0.3, 0.9, 0.5]
    group, trajectory, outcome = [0, 0, 0, 1, 1, 2], [0, 0, 1, 2, 3, 4], [10, 10, 0, 1, 1, 3]
    result = modulate(entropy, [0.0] * 6, group, trajectory, outcome, noise_variance=20.0)
    np.testing.assert_allclose(result.lam[:6], [0.6, 0.6, 0.6, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(result.alpha[:3], alphas(entropy[:3], [0] * 3, [0, 0, 1], lam=0.6), rtol=1e-5)
    np.testing.assert_allclose(result.alpha[3:6], 1, rtol=1e-6)
    drowned = modulate(entropy, [0.0] * 6, group, trajectory, outcome, noise_variance=1e4)
    np.testing.assert_allclose(drowned.alpha, 1, rtol=1e-6)


def test_unknown_names_and_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match=r"unknown scope='task'; known: group, trajectory, batch"):
        settings(scope="task")
    with pytest.raises(ValueError, match=r"unknown proxy='margin'; known: entropy, surprisal, mix"):
        settings(proxy="margin")
    with pytest.raises(ValueError, match=r"quantile=1.5 must lie in \[0, 1\]"):
        settings(quantile=1.5)
    with pytest.raises(ValueError, match=r"threshold=-0.1"):
        settings(threshold=-0.1)
    with pytest.raises(ValueError, match="unknown scope='task'"):
        alphas([0.2, 0.7], [0, 0], [0, 1], scope="task")
