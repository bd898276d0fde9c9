"""Entropy-modulated policy gradients: numbers, a float64 reference, laws, edge cases, no gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import empg

SIZE = 32
FULL = empg.EmpgSettings(k=1.0, k_next=2.0, zeta=0.5)
PLAIN = empg.EmpgSettings(k=0.0, k_next=1.0, zeta=0.0)


def columns(advantage, entropy, trajectory, turn, valid=None):
    """Table columns, padded with rows of trajectory 0 that hold NaN and are not valid."""
    extra = SIZE - len(advantage)
    valid = np.ones(len(advantage), bool) if valid is None else np.asarray(valid)
    return (
        *(jnp.asarray(np.r_[x, [np.nan] * extra], jnp.float32) for x in (advantage, entropy)),
        *(jnp.asarray(np.r_[x, [0] * extra], jnp.int32) for x in (trajectory, turn)),
        jnp.asarray(np.r_[valid, [False] * extra], bool),
    )


@functools.partial(jax.jit, static_argnames="settings")
def _modulated(advantage, entropy, trajectory, turn, valid, settings):
    return empg.modulated(advantage, entropy, trajectory, turn, valid, settings=settings)


def modulated(*table, settings=FULL):
    result = np.asarray(_modulated(*columns(*table), settings=settings))
    assert (result[len(table[0]) :] == 0).all()
    return result[: len(table[0])]


def reference(advantage, entropy, trajectory, turn, valid, *, settings):
    """Float64, a row at a time; no shared code."""
    rows = [r for r in range(len(advantage)) if valid[r]]
    low, high = min(entropy[r] for r in rows), max(entropy[r] for r in rows)
    h = {r: (float(entropy[r]) - low) / (high - low + settings.eps) for r in rows}
    confidence = np.mean([np.exp(-settings.k * h[r]) for r in rows])
    value = np.zeros(len(advantage))
    for r in rows:
        value[r] = advantage[r] * np.exp(-settings.k * h[r]) / confidence
        after = [q for q in rows if trajectory[q] == trajectory[r] and turn[q] > turn[r]]
        if after:
            value[r] += settings.zeta * np.exp(-settings.k_next * h[min(after, key=lambda q: turn[q])])
    value[rows] -= value[rows].mean()
    return value


def ragged(seed) -> tuple[np.ndarray, ...]:
    """6 trajectories of 1 to 5 turns in random order; NaN where not valid."""
    random = np.random.default_rng(seed)
    rows = []
    for trajectory in range(6):
        for turn in range(random.integers(1, 6)):
            rows.append((random.normal(), random.gamma(1.0), trajectory, turn, random.random() < 0.85))
    random.shuffle(rows)
    advantage, entropy, trajectory, turn, valid = (np.array(column) for column in zip(*rows, strict=True))
    return (
        *(np.where(valid, x, np.nan).astype(np.float32) for x in (advantage, entropy)),
        trajectory,
        turn,
        valid,
    )


def test_numbers():
    # normalised entropies 0, 1/2, 1; g = 1.519441, 0.921589, 0.558970; only row 0 has a next step: exp(-2 / 2) / 2
    # 1.519441 + 0.183940, -0.921589, 1.117940, less their mean 0.633244
    result = modulated([1.0, -1.0, 2.0], [0.2, 0.7, 1.2], [0, 0, 1], [0, 1, 0])
    np.testing.assert_allclose(result, [1.070137, -1.554833, 0.484696], rtol=1e-5)


def test_scaling_alone_has_mean_1_over_the_batch():
    settings = empg.EmpgSettings(k=1.0, k_next=1.0, zeta=0.0)
    # advantages of 1: g less its mean, which is 1; the two trajectories do not matter
    result = modulated([1.0, 1.0, 1.0], [0.2, 0.7, 1.2], [0, 0, 1], [0, 1, 0], settings=settings)
    np.testing.assert_allclose(result + 1, [1.519441, 0.921589, 0.558970], rtol=1e-5)


@pytest.mark.parametrize("settings", [FULL, empg.EmpgSettings(k=-0.5, k_next=0.3, zeta=0.05, eps=0.1)])
def test_against_float64_loops(settings):
    for seed in range(6):
        table = ragged(seed)
        expected = reference(*table, settings=settings)
        np.testing.assert_allclose(modulated(*table, settings=settings), expected, rtol=1e-4, atol=1e-5)


# laws


def test_the_batch_has_mean_0():
    for seed in range(4):
        table = ragged(seed)
        result = modulated(*table)
        assert abs(result[table[-1]].mean()) < 1e-6
        assert (result[~table[-1]] == 0).all() and np.ptp(result) > 0.5


def test_everything_off_only_centres():
    advantage, *rest, valid = ragged(1)
    centred = np.where(valid, advantage - advantage[valid].mean(), 0)
    np.testing.assert_allclose(modulated(advantage, *rest, valid, settings=PLAIN), centred, atol=1e-6)


def test_the_bonus_does_not_depend_on_the_advantage():
    advantage, *rest = ragged(2)
    silent = empg.EmpgSettings(k=1.0, k_next=2.0, zeta=0.0)
    bonus = modulated(advantage, *rest) - modulated(advantage, *rest, settings=silent)
    other = modulated(-3 * advantage, *rest) - modulated(-3 * advantage, *rest, settings=silent)
    np.testing.assert_allclose(bonus, other, atol=1e-5)
    assert np.ptp(bonus) > 0.1


def test_clearer_next_steps_get_a_larger_bonus_and_last_steps_none():
    # three trajectories of two turns; the second turns have normalised entropy 0, 1/2 and 1
    entropy = [0.5, 0.5, 0.5, 0.0, 0.5, 1.0]
    result = modulated([0.0] * 6, entropy, [0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1])
    assert result[0] > result[1] > result[2] > result[3]
    np.testing.assert_array_equal(result[3:], result[3])  # centred zeros


def test_shift_and_scale_of_entropies_change_nothing():
    advantage, entropy, *rest = ragged(3)
    base = modulated(advantage, entropy, *rest)
    np.testing.assert_allclose(modulated(advantage, 3 * entropy + 2, *rest), base, rtol=1e-4, atol=1e-5)


def test_row_order_never_matters():
    table = ragged(4)
    order = np.random.default_rng(0).permutation(len(table[0]))
    shuffled = modulated(*(column[order] for column in table))
    np.testing.assert_allclose(shuffled, modulated(*table)[order], rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_valid_do_not_exist():
    alone = modulated([1.0, -1.0, 2.0], [0.2, 0.7, 1.2], [0, 0, 1], [0, 2, 0])
    # a NaN between the two turns of trajectory 0, and an entropy beyond the others'
    more = modulated(
        [1.0, np.nan, -1.0, 5.0, 2.0],
        [0.2, np.inf, 0.7, 9.0, 1.2],
        [0, 0, 0, 1, 1],
        [0, 1, 2, 1, 0],
        [True, False, True, False, True],
    )
    np.testing.assert_allclose(more, [alone[0], 0, alone[1], 0, alone[2]], rtol=1e-6)


# edges


@pytest.mark.parametrize("eps", [1e-8, 0.0])
def test_equal_entropies_scale_nothing(eps):
    settings = empg.EmpgSettings(k=1.0, k_next=1.0, zeta=0.5, eps=eps)
    # g is 1; the first turn gets the full bonus of 1/2: 1.5, -1, 2 less 5/6
    result = modulated([1.0, -1.0, 2.0], [0.7] * 3, [0, 0, 1], [0, 1, 0], settings=settings)
    np.testing.assert_allclose(result, [2 / 3, -11 / 6, 7 / 6], rtol=1e-6)


def test_one_response_is_centred_away_and_none_is_0():
    np.testing.assert_array_equal(modulated([3.0], [0.4], [0], [0]), [0])
    np.testing.assert_array_equal(modulated([3.0, np.nan], [np.nan] * 2, [0, 0], [0, 1], [False] * 2), 0)


def test_no_gradient_flows_through_it():
    advantage, entropy, *rest = columns([1.0, -1.0, np.nan], [0.2, 0.7, np.nan], [0, 0, 0], [0, 1, 2])
    rest[-1] = rest[-1].at[2].set(False)

    def total(advantage, entropy):
        return jnp.sum(jnp.square(_modulated(advantage, entropy, *rest, settings=FULL)))

    for gradient in jax.grad(total, argnums=(0, 1))(advantage, entropy):
        np.testing.assert_array_equal(gradient, 0)
    assert total(advantage, entropy) > 0.1


def test_a_negative_eps_is_refused():
    with pytest.raises(ValueError, match=r"eps=-1e-08 must not be negative"):
        empg.EmpgSettings(k=1.0, k_next=1.0, zeta=0.05, eps=-1e-8)
