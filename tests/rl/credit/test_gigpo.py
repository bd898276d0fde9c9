"""GiGPO, the estimator of two levels: numbers, a float64 reference, laws, missing rewards. The rest of
`rl.credit.estimators` is in test_estimators.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import estimators

SIZE = 48  # one shape for all
# two trajectories of a group that start in one state and part: rewards 0, 1 and 0, 0
PARTED = dict(
    outcome=[1.0, 1.0, 0.0, 0.0],
    reward=[0.0, 1.0, 0.0, 0.0],
    group=[0, 0, 0, 0],
    trajectory=[0, 0, 1, 1],
    turn=[0, 1, 0, 1],
    step_group=[0, 1, 0, 2],
)
SQUARE = 0.5**0.5


def columns(outcome, reward, group, trajectory, turn, step_group, valid=None):
    """Table columns, padded with rows that hold NaN and are not valid."""
    extra = SIZE - len(outcome)
    valid = np.ones(len(outcome), bool) if valid is None else np.asarray(valid)
    return (
        *(jnp.asarray(np.r_[x, [np.nan] * extra], jnp.float32) for x in (outcome, reward)),
        *(jnp.asarray(np.r_[x, [0] * extra], jnp.int32) for x in (group, trajectory, turn, step_group)),
        jnp.asarray(np.r_[valid, [False] * extra], bool),
    )


@functools.partial(jax.jit, static_argnames=("gamma", "omega", "std", "unit", "singleton"))
def _gigpo(*table, **scalars):
    return estimators.gigpo(*table, **scalars)


def gigpo(table, *, gamma=0.95, omega=1.0, std=True, unit="trajectory", singleton="zero"):
    """The advantages of the rows given; padding rows must have 0."""
    scalars = {"gamma": gamma, "omega": omega, "std": std, "unit": unit, "singleton": singleton}
    result = np.asarray(_gigpo(*columns(**table), **scalars))
    count = len(table["outcome"])
    assert (result[count:] == 0).all()
    return result[:count]


def relative(value, ids, counted, *, std, eps=1e-6):
    """(value - mean) / std of its ids in float64, 0 for a lone member; `counted`: who enters a statistic."""
    result = np.zeros(len(value))
    for r in range(len(value)):
        members = [float(value[q]) for q in range(len(value)) if counted[q] and ids[q] == ids[r]]
        if len(members) > 1 and np.ptp(members) > 0:
            result[r] = (value[r] - np.mean(members)) / ((np.std(members, ddof=1) + eps) if std else 1)
    return result


def reference(outcome, reward, group, trajectory, turn, step_group, valid, *, gamma, omega, std):
    """Loops in float64; no shared code."""
    rows = range(len(outcome))
    to_go = np.zeros(len(outcome))
    for r in rows:
        later = [q for q in rows if valid[q] and trajectory[q] == trajectory[r] and turn[q] >= turn[r]]
        later.sort(key=lambda q: turn[q])
        to_go[r] = sum(gamma**k * float(reward[q]) for k, q in enumerate(later))
    seen, first = set(), np.zeros(len(outcome), bool)
    for r in rows:
        if valid[r] and trajectory[r] not in seen:
            seen.add(trajectory[r])
            first[r] = True
    episode = relative(outcome, group, first, std=std)
    step = relative(to_go, step_group, valid, std=std)
    return np.where(valid, episode + omega * step, 0)


def ragged(seed):
    """3 groups of 1 to 4 trajectories of 1 to 4 turns over few states, in random order; NaN where not valid."""
    random = np.random.default_rng(seed)
    rows, trajectory = [], 0
    for group in range(3):
        for _ in range(random.integers(1, 5)):
            rewards = random.choice([0.0, -0.1, 1.0], random.integers(1, 5))
            for turn, reward in enumerate(rewards):
                state = 3 * group + random.integers(3)
                rows.append((rewards.sum(), reward, group, trajectory, turn, state, random.random() < 0.9))
            trajectory += 1
    random.shuffle(rows)
    names = ("outcome", "reward", "group", "trajectory", "turn", "step_group", "valid")
    table = dict(zip(names, (np.array(column) for column in zip(*rows, strict=True)), strict=True))
    for name in ("outcome", "reward"):
        table[name] = np.where(table["valid"], table[name], np.nan).astype(np.float32)
    return table


def test_numbers():
    # episode: +-0.7071; returns-to-go 0.95, 1, 0, 0; only the first turns share a state: +-0.7071 more
    expected = [2 * SQUARE, SQUARE, -2 * SQUARE, -SQUARE]
    np.testing.assert_allclose(gigpo(PARTED), expected, rtol=1e-5)
    # only centred: episode +-0.5, and at gamma 1/2 the first turns' 0.5 and 0: +-0.25 more
    np.testing.assert_allclose(gigpo(PARTED, gamma=0.5, std=False), [0.75, 0.5, -0.75, -0.5], rtol=1e-6)


def test_every_visit_of_a_state_counts():
    # trajectory 0 comes back to its first state: returns-to-go 0.5, 1, 0 in one step group, mean 0.5
    table = PARTED | {"step_group": [0, 0, 0, 2]}
    result = gigpo(table, gamma=0.5, std=False)
    np.testing.assert_allclose(result, [0.5, 1, -1, -0.5], rtol=1e-6)


@pytest.mark.parametrize(("gamma", "omega", "std"), [(0.95, 1.0, True), (0.5, 0.3, False)])
def test_against_float64_loops(gamma, omega, std):
    for seed in range(6):
        table = ragged(seed)
        expected = reference(**table, gamma=gamma, omega=omega, std=std)
        result = gigpo(table, gamma=gamma, omega=omega, std=std)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_omega_0_is_grpo_or_only_centred():
    for seed in range(3):
        table = ragged(seed)
        groups = [columns(**table)[i] for i in (0, 2, 3, 6)]
        count = len(table["outcome"])
        np.testing.assert_array_equal(gigpo(table, omega=0.0), estimators.grpo(*groups)[:count])
        flat = gigpo(table, gamma=0.5, omega=0.0, std=False)
        np.testing.assert_array_equal(flat, estimators.centred(*groups)[:count])
        assert np.abs(flat).max() > 0.1


def test_row_order_never_matters():
    table = ragged(5)
    order = np.random.default_rng(0).permutation(len(table["outcome"]))
    shuffled = gigpo({name: column[order] for name, column in table.items()})
    np.testing.assert_allclose(shuffled, gigpo(table)[order], rtol=1e-5, atol=1e-5)


def test_equal_returns_and_lone_states_give_exactly_0():
    same = PARTED | {"outcome": [1.0] * 4, "reward": [0.0, 1.0, 0.0, 1.0]}
    np.testing.assert_array_equal(gigpo(same), 0)
    # one trajectory in its group, every state once
    lone = PARTED | {"group": [0, 0, 1, 1], "step_group": [0, 1, 2, 3]}
    np.testing.assert_array_equal(gigpo(lone), 0)
    # as raw returns: the outcome and, with gamma 1/2, the returns-to-go
    raw = gigpo(lone, gamma=0.5, singleton="raw", std=False)
    np.testing.assert_allclose(raw, [1.5, 2, 0, 0], rtol=1e-6)


def test_unit_changes_the_episodes_level_only():
    # trajectory 0 has two turns, trajectory 1 one: by responses the mean is 2/3
    table = {name: values[:3] for name, values in PARTED.items()} | {"step_group": [0, 1, 2]}
    np.testing.assert_allclose(gigpo(table, gamma=0.5, std=False), [0.5, 0.5, -0.5], rtol=1e-6)
    by_response = gigpo(table, gamma=0.5, std=False, unit="response")
    np.testing.assert_allclose(by_response, [1 / 3, 1 / 3, -2 / 3], rtol=1e-6)


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_a_trajectory_without_a_return_enters_neither_level(missing):
    # the third trajectory lost its last reward; its first turn must not count as a return-to-go of 0
    lost = {
        "outcome": [missing] * 2,
        "reward": [0.0, missing],
        "group": [0, 0],
        "trajectory": [2, 2],
        "turn": [0, 1],
        "step_group": [0, 1],
    }
    table = {name: [*values, *lost[name]] for name, values in PARTED.items()}
    result = gigpo(table)
    np.testing.assert_array_equal(result, np.r_[gigpo(PARTED), 0, 0])
    np.testing.assert_array_equal(result, gigpo(table | {"valid": [True] * 4 + [False] * 2}))


def test_no_valid_row_and_no_row():
    np.testing.assert_array_equal(gigpo(PARTED | {"valid": [False] * 4}), 0)
    kinds = (jnp.float32, jnp.float32, jnp.int32, jnp.int32, jnp.int32, jnp.int32, bool)
    assert _gigpo(*(jnp.zeros(0, kind) for kind in kinds)).shape == (0,)


def test_no_gradient_flows_through_it():
    outcome, reward, *rest = columns(**PARTED)

    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def run(outcome, reward):
        return jnp.sum(jnp.square(_gigpo(outcome, reward, *rest)))

    value, gradients = jax.jit(run)(outcome, reward)
    assert value > 1
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)
