"""Base advantages: numbers, an independent float64 reference, laws, edge cases, and the reports of peers by number.
GiGPO is in test_gigpo.py, GAE in test_gae.py, whitening in test_whitened.py."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import estimators
from rl.credit.gae import gae
from rl.objective import aggregate

FUNCTIONS = {"grpo": estimators.grpo, "centred": estimators.centred, "rloo": estimators.rloo}
NAMES = sorted(FUNCTIONS)
SIZE = 48  # every table is padded to it, so few shapes are compiled (report 9 compares with unpadded ones)


def arrays(outcome, group, trajectory, valid=None, size=SIZE):
    valid = np.ones(len(outcome), bool) if valid is None else valid
    columns = (
        (outcome, jnp.float32, np.nan),
        (group, jnp.int32, 0),
        (trajectory, jnp.int32, 0),
        (valid, bool, False),
    )
    return tuple(jnp.asarray(np.r_[c, [fill] * (size - len(c))], kind) for c, kind, fill in columns)


def advantages(name, outcome, group, trajectory, valid=None, **scalars):
    """The advantages of the rows given, as numpy."""
    result = FUNCTIONS[name](*arrays(outcome, group, trajectory, valid), **scalars)
    return np.asarray(result)[: len(outcome)]


def reference(name, outcome, group, trajectory, valid, *, unit="trajectory", ddof=1, eps=1e-6):
    """Loops over groups and members in float64; no shared code."""
    result = np.zeros(len(outcome))
    for g in set(group):
        members, seen = [], set()
        for r in range(len(outcome)):
            if group[r] == g and valid[r] and (unit == "response" or trajectory[r] not in seen):
                seen.add(trajectory[r])
                members.append(float(outcome[r]))
        for r in range(len(outcome)):
            if group[r] != g or not valid[r] or len(members) < 2:
                continue
            if name == "rloo":
                others = list(members)
                others.remove(float(outcome[r]))
                result[r] = outcome[r] - sum(others) / len(others)
            else:
                result[r] = outcome[r] - sum(members) / len(members)
            if name == "grpo":
                deviation = np.std(members, ddof=ddof)
                result[r] = result[r] / (deviation + eps) if deviation > 0 else 0
    return result


def ragged(seed):
    """Groups of 1 to 4 trajectories of 1 to 3 turns, in random order, some rows masked with NaN in them."""
    random = np.random.default_rng(seed)
    rows = []
    for g in range(4):
        for _ in range(random.integers(1, 5)):
            outcome, trajectory = random.choice([0.0, 1.0, 10.0, random.normal()]), len({r[2] for r in rows})
            rows += [(outcome, g, trajectory, random.random() < 0.85)] * random.integers(1, 4)
    random.shuffle(rows)
    outcome, group, trajectory, valid = (np.array(column) for column in zip(*rows, strict=True))
    return np.where(valid, outcome, np.nan).astype(np.float32), group, trajectory, valid


# numbers


def test_grpo_numbers():
    # returns 1, 0, 1, 0: mean 0.5, sd (ddof 1) 0.5773503
    data = [1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 2, 3]
    np.testing.assert_allclose(advantages("grpo", *data), [0.8660239, -0.8660239] * 2, rtol=1e-6)
    np.testing.assert_allclose(advantages("grpo", *data, ddof=0), [0.999998, -0.999998] * 2, rtol=1e-6)
    np.testing.assert_allclose(advantages("grpo", *data, ddof=0, eps=0.5), [0.5, -0.5] * 2, rtol=1e-6)


def test_centred_and_rloo_numbers():
    # returns 6, 0, 3: mean 3; the others of each: 1.5, 4.5, 3
    data = [6, 0, 3, 3], [0, 0, 0, 0], [0, 1, 2, 2]
    np.testing.assert_allclose(advantages("centred", *data), [3, -3, 0, 0], atol=1e-6)
    np.testing.assert_allclose(advantages("rloo", *data), [4.5, -4.5, 0, 0], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", estimators.UNITS)
def test_against_float64_reference(name, unit):
    for seed in range(8):
        data = ragged(seed)
        result = advantages(name, *data, unit=unit)
        np.testing.assert_allclose(result, reference(name, *data, unit=unit), rtol=1e-5, atol=1e-5)


# laws


@pytest.mark.parametrize("name", NAMES)
def test_advantages_sum_to_0_over_the_trajectories_of_a_group(name):
    advantage = advantages(name, [3.0, 1.0, 10.0, 10.0, 2.5], [0, 0, 0, 0, 0], [0, 1, 2, 2, 3])
    assert abs(advantage[[0, 1, 2, 4]].sum()) < 1e-5
    assert np.abs(advantage).max() > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_adding_a_constant_to_a_group_changes_nothing(name):
    ids = [0, 0, 1, 1], [0, 1, 2, 3]
    base = advantages(name, [1.0, 0.0, 0.0, 1.0], *ids)
    np.testing.assert_allclose(advantages(name, [5.0, 4.0, -2.0, -1.0], *ids), base, atol=1e-6)
    assert np.abs(base).min() > 0.4


def test_scaling_returns_scales_all_but_grpo():
    ids = [0, 0, 0], [0, 1, 2]
    for name, factor in (("grpo", 1), ("centred", 10), ("rloo", 10)):
        base, scaled = advantages(name, [2.0, 0.0, 1.0], *ids), advantages(name, [20.0, 0.0, 10.0], *ids)
        np.testing.assert_allclose(scaled, factor * base, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unit", estimators.UNITS)
def test_equal_returns_give_exactly_0(name, unit):
    values = np.repeat([0.0, 0.1, 0.7, 10.0, 1 / 3, -0.3], 7)
    group = np.repeat(np.arange(6), 7)
    trajectory = 5 * group + np.tile([0, 0, 1, 2, 3, 3, 4], 6)
    np.testing.assert_array_equal(advantages(name, values, group, trajectory, unit=unit), 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_valid_rows_is_0(name):
    advantage = advantages(name, [np.nan, 1.0, np.inf], [0, 0, 0], [0, 1, 2], [False] * 3)
    np.testing.assert_array_equal(advantage, 0)


@pytest.mark.parametrize("name", NAMES)
def test_no_gradient_flows_through_an_advantage(name):
    outcome, *rest = arrays([1.0, 0.0, np.nan], [0, 0, 0], [0, 1, 2], [True, True, False])
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.square(FUNCTIONS[name](x, *rest)))))(outcome)
    np.testing.assert_array_equal(gradient, 0)


def test_narrow_returns_are_widened():
    shapes = [jax.ShapeDtypeStruct((4,), kind) for kind in (jnp.bfloat16, jnp.int32, jnp.int32, bool)]
    for name in NAMES:
        assert jax.eval_shape(FUNCTIONS[name], *shapes).dtype == jnp.float32


def test_a_group_split_over_8_devices_equals_one_device():
    data = arrays(*ragged(2))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    assert mesh.size == 8
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    split = jax.jit(lambda *columns: {name: FUNCTIONS[name](*columns) for name in NAMES})(
        *(jax.device_put(column, sharding) for column in data)
    )
    for name in NAMES:
        np.testing.assert_allclose(split[name], FUNCTIONS[name](*data), rtol=1e-6, atol=1e-6)


# registry

SETTINGS = dict(
    unit="response", ddof=0, eps=0.5, singleton="raw", gamma=0.5, omega=2.0, std=True, gae_lam=0.25
)
OTHER = dict(
    unit="trajectory", ddof=1, eps=0.1, singleton="zero", gamma=0.75, omega=1.0, std=False, gae_lam=0.5
)
GROUPS = {"unit", "singleton"}
READS = {  # which settings each estimator depends on; whitening is on top of all
    "grpo": GROUPS | {"ddof", "eps"},
    "centred": GROUPS,
    "rloo": GROUPS,
    "outcome": set(),
    "gigpo": GROUPS | {"ddof", "eps", "gamma", "omega", "std"},
    "gae": {"gamma", "gae_lam"},
}


def table_and_value():
    """Two trajectories of group 0, the first of two turns, and a lone one; the first turns share a state."""
    outcome, group, trajectory, valid = arrays([2.0, 2.0, 0.0, 5.0], [0, 0, 0, 1], [0, 0, 1, 2], size=8)
    reward, turn, step_group, _ = arrays([0.5, 1.5, 0.0, 5.0], [0, 1, 0, 0], [0, 1, 0, 2], size=8)
    columns = dict(outcome=outcome, group=group, trajectory=trajectory, valid=valid)
    value = arrays([0.5, 1.0, 0.25, 2.0], [0] * 4, [0] * 4, size=8)[0]
    return SimpleNamespace(**columns, reward=reward, turn=turn, step_group=step_group), value


@pytest.mark.parametrize("name", sorted(estimators.ESTIMATORS))
def test_estimate_is_the_named_function_with_the_settings(name):
    table, value = table_and_value()
    s = estimators.EstimatorSettings(name, **SETTINGS)
    groups = table.outcome, table.group, table.trajectory, table.valid
    scalars = {"unit": "response", "singleton": "raw"}
    full = scalars | {"ddof": 0, "eps": 0.5}
    steps = table.trajectory, table.turn
    expected = {
        "grpo": lambda: estimators.grpo(*groups, **full),
        "centred": lambda: estimators.centred(*groups, **scalars),
        "rloo": lambda: estimators.rloo(*groups, **scalars),
        "outcome": lambda: estimators.outcome_itself(table.outcome, table.valid),
        "gigpo": lambda: estimators.gigpo(
            table.outcome, table.reward, table.group, *steps, table.step_group, table.valid,
            gamma=0.5, omega=2.0, **full,
        ),
        "gae": lambda: gae(table.reward, value, *steps, table.valid, gamma=0.5, lam=0.25),
    }[name]()  # fmt: skip
    result = estimators.estimate(table, value, settings=s)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert np.abs(result[:4]).max() > 0.3

    def gap(field):
        other = dataclasses.replace(s, **{field: OTHER[field]})
        return np.abs(estimators.estimate(table, value, settings=other) - result).max()

    assert {field for field in OTHER if gap(field) > 1e-3} == READS[name]


@pytest.mark.parametrize("name", sorted(estimators.ESTIMATORS))
def test_whiten_normalises_any_estimator_over_the_batch(name):
    table, value = table_and_value()
    table.outcome = table.outcome.at[3].set(jnp.nan)  # not known: its 0 is no advantage
    unit = "trajectory" if name == "gae" else "response"  # a critic tells responses apart: each counts anyway
    plain = estimators.EstimatorSettings(name, unit, ddof=1, eps=1e-6, singleton="zero", gae_lam=0.5)
    base = estimators.estimate(table, value, settings=plain)
    result = estimators.estimate(table, value, settings=dataclasses.replace(plain, whiten=True))
    assert abs(result[:3].mean()) < 1e-6 and abs(np.std(result[:3], ddof=1) - 1) < 1e-4
    np.testing.assert_array_equal(jnp.stack([base, result])[:, 3:], 0)
    assert np.corrcoef(base[:3], result[:3])[0, 1] > 0.9999


def test_unknown_names_list_the_known_ones():
    with pytest.raises(
        ValueError, match="unknown estimator 'grp'; known: centred, gae, gigpo, grpo, outcome, rloo"
    ):
        estimators.EstimatorSettings("grp", unit="trajectory", ddof=1, eps=1e-6, singleton="zero")
    with pytest.raises(ValueError, match="unknown unit='turn'; known: trajectory, response"):
        estimators.EstimatorSettings("grpo", unit="turn", ddof=1, eps=1e-6, singleton="zero")
    with pytest.raises(ValueError, match="unknown singleton='one'; known: zero, raw"):
        estimators.EstimatorSettings("grpo", unit="trajectory", ddof=1, eps=1e-6, singleton="one")
    for field in ("gamma", "gae_lam"):
        with pytest.raises(ValueError, match=rf"{field}=1.5 .*must lie in \[0, 1\]"):
            estimators.EstimatorSettings("gae", "trajectory", 1, 1e-6, "zero", **{field: 1.5})
    data = arrays([1.0, 0.0], [0, 0], [0, 1])
    with pytest.raises(ValueError, match="unknown unit='turn'"):
        estimators.grpo(*data, unit="turn")
    with pytest.raises(ValueError, match="unknown singleton='one'"):
        estimators.rloo(*data, singleton="one")


# reports of peers (their numbers in the project's list)


@pytest.mark.parametrize("name", NAMES)
def test_report_1_a_group_of_one_has_no_relative_signal(name):
    data = [10.0, 10.0, 1.0, 0.0], [0, 0, 1, 1], [0, 0, 1, 2]
    advantage = advantages(name, *data)
    np.testing.assert_array_equal(advantage[:2], 0)
    assert advantage[2] > 0.4
    raw = advantages(name, *data, singleton="raw")
    np.testing.assert_allclose(raw[:2], 10, rtol=1e-5)
    np.testing.assert_array_equal(raw[2:], advantage[2:])


@pytest.mark.parametrize("name", NAMES)
def test_report_2_row_order_never_matters(name):
    data = ragged(4)
    order = np.random.default_rng(0).permutation(len(data[0]))
    # also when steps carry their own penalty and the rows of a trajectory differ
    for outcome in (data[0], data[0] - 0.1 * (np.arange(len(order)) % 3)):
        base = advantages(name, outcome, *data[1:])
        shuffled = advantages(name, outcome[order], *(column[order] for column in data[1:]))
        np.testing.assert_allclose(shuffled, base[order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_report_3_two_groups_of_one_prompt_are_not_merged(name):
    # the same task, hence the same text, drawn twice: all failed in one group, all succeeded in the other
    data = [0.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [0, 1, 2, 3]
    np.testing.assert_array_equal(advantages(name, *data), 0)
    assert np.abs(advantages(name, data[0], [0, 0, 0, 0], data[2])).min() > 0.4  # what merging would give


def test_report_4_a_longer_episode_counts_once():
    # turns 2, 1, 2, 1 with returns 1, 0, 1, 0: mean 0.5; counted by turns it would be 2/3
    data = [1, 1, 0, 1, 1, 0], [0] * 6, [0, 0, 1, 2, 2, 3]
    np.testing.assert_allclose(advantages("centred", *data), [0.5, 0.5, -0.5, 0.5, 0.5, -0.5])
    by_turn = advantages("centred", *data, unit="response")
    np.testing.assert_allclose(by_turn, [1 / 3, 1 / 3, -2 / 3, 1 / 3, 1 / 3, -2 / 3], rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_report_5_every_token_of_every_step_carries_the_advantage(name):
    # two turns of a trajectory in rows of their own, then a failed one of a single turn
    advantage = FUNCTIONS[name](*arrays([1, 1, 0], [0, 0, 0], [0, 0, 1]))
    response_id = jnp.array([[-1, 0, 0, -1], [-1, -1, 1, 1], [-1, 2, -1, -1]])
    tokens = np.asarray(aggregate.to_tokens(advantage, response_id, response_id >= 0))
    assert (tokens[0, 1:3] > 0.4).all()
    assert (tokens[1, 2:] == tokens[0, 1]).all()
    assert tokens[2, 1] < -0.4
    assert (tokens[np.asarray(response_id) < 0] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("missing", [np.nan, np.inf, -np.inf])
def test_report_7_a_missing_return_is_excluded_and_the_others_stay_finite(name, missing):
    advantage = advantages(name, [1.0, 0.0, missing, missing], [0] * 4, [0, 1, 2, 2])
    np.testing.assert_array_equal(advantage, np.r_[advantages(name, [1.0, 0.0], [0] * 2, [0, 1]), 0, 0])
    valid = [True, True, False, False]
    masked = advantages(name, [1.0, 0.0, 0.0, 0.0], [0] * 4, [0, 1, 2, 2], valid)
    np.testing.assert_array_equal(masked, advantage)  # and it is not a return of 0
    assert np.abs(advantage[:2]).min() > 0.4


def test_report_9_padding_rows_have_no_effect():
    outcome, group, trajectory, _ = ragged(6)
    outcome = np.nan_to_num(outcome, nan=5.0)
    assert len(outcome) < SIZE - 3
    run = jax.jit(lambda *columns: [FUNCTIONS[name](*columns) for name in NAMES])
    alone = run(*arrays(outcome, group, trajectory, size=len(outcome)))
    # padding rows: copies of real rows, NaN, ids out of range
    extra = SIZE - len(outcome)
    padded = arrays(
        np.r_[outcome, 40.0, np.nan, 9.0, np.repeat(outcome[:1], extra - 3)],
        np.r_[group, 0, 1, -1, np.repeat(group[:1], extra - 3)],
        np.r_[trajectory, 2, 1, SIZE, np.repeat(trajectory[:1], extra - 3)],
        np.arange(SIZE) < len(outcome),
    )
    for advantage, padded_advantage in zip(alone, run(*padded), strict=True):
        assert np.abs(advantage).max() > 0.4
        np.testing.assert_allclose(padded_advantage, np.r_[advantage, np.zeros(extra)], rtol=1e-6)


def test_report_20_16_draws_with_replacement_stay_groups_of_their_own():
    # one task drawn 16 times, 2 members each; returns differ between draws, and within the last only
    outcome = np.repeat(np.arange(16.0), 2)
    outcome[-1] = 0.0
    advantage = advantages("centred", outcome, np.repeat(np.arange(16), 2), np.arange(32))
    np.testing.assert_array_equal(advantage[:30], 0)
    np.testing.assert_allclose(advantage[30:], [7.5, -7.5])
