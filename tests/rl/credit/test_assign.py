"""The composition of credit: numbers of every stage, its switches, laws of the whole, and what is refused."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import assign, penalty
from rl.credit.aem import AemSettings
from rl.credit.empg import EmpgSettings
from rl.credit.estimators import EstimatorSettings
from rl.credit.outliers import OutlierSettings
from rl.types import Responses

SIZE = 16
GRPO = EstimatorSettings("grpo", "trajectory", 1, 1e-6, "zero")
GAE = dataclasses.replace(GRPO, name="gae", gamma=1.0, gae_lam=1.0)
GIGPO = dataclasses.replace(GRPO, name="gigpo", gamma=0.5)
AEM = AemSettings(threshold=0.1, scope="group", reverse=False, shuffle=False, proxy="entropy", mix=0.5)
EMPG = EmpgSettings(k=1.0, k_next=2.0, zeta=0.5)
OUTLIERS = OutlierSettings("normalised", fence=1.0, singleton="raw", ddof=1, eps=0.0)
PLAIN = assign.CreditSettings(estimator=GRPO, penalty="none")
FULL = assign.CreditSettings(
    estimator=dataclasses.replace(GIGPO, whiten=True), penalty="return", aem=AEM, empg=EMPG, outliers=OUTLIERS
)
SQUARE = 0.5**0.5
ALPHA = [1.519441, 0.921589, 0.558970]  # entropies 0.2, 0.7, 1.2 at lam 1: exp(-H) over its mean 0.658137


def table(
    outcome,
    trajectory,
    turn,
    *,
    group=None,
    reward=None,
    penalty=None,
    step_group=None,
    valid=None,
    size=SIZE,
) -> Responses:
    """A response table, padded with rows that hold NaN and are not valid."""
    count = len(outcome)
    zeros, floats = [0] * count, {"outcome": outcome, "reward": reward, "penalty": penalty}
    ids = {"group": group, "trajectory": trajectory, "turn": turn, "step_group": step_group}

    def column(values, fill, kind):
        return jnp.asarray(np.r_[zeros if values is None else values, [fill] * (size - count)], kind)

    return Responses(
        **{name: column(values, np.nan, jnp.float32) for name, values in floats.items()},
        **{name: column(values, 0, jnp.int32) for name, values in ids.items()},
        valid=column([True] * count if valid is None else valid, False, bool),
    )


@functools.partial(jax.jit, static_argnames="settings")
def _assign(responses, entropy, surprisal, value, threshold, settings):
    return assign.assign(
        responses, entropy, surprisal, value, jax.random.key(0), threshold, settings=settings
    )


def credit(responses, settings, *, entropy=(), surprisal=(), value=(), threshold=np.nan) -> Any:
    """What `assign` says of the valid rows in front, as numpy; padding holds NaN and must come out silent."""
    size = responses.valid.shape[0]
    fields = [
        jnp.asarray(np.r_[x, [np.nan] * (size - len(x))], jnp.float32) for x in (entropy, surprisal, value)
    ]
    result = _assign(responses, *fields, jnp.float32(threshold), settings)
    out = np.asarray(responses.valid)
    for name in ("base", "advantage", "target", "trained", "normalised", "outlier", "extremity"):
        assert not np.asarray(getattr(result, name))[~out].any(), name
    assert (np.asarray(result.alpha)[~out] == 1).all()
    rows = out.nonzero()[0]
    return assign.Credit(*(np.asarray(x)[rows] if np.ndim(x) else float(x) for x in result))


# a group of two trajectories, of two turns and one; entropies of the three responses below
PAIR: dict[str, Any] = dict(outcome=[1.0, 1.0, 0.0], trajectory=[0, 0, 1], turn=[0, 1, 0])
ENTROPY = [0.2, 0.7, 1.2]


# stages


def test_estimator_alone():
    result = credit(table(**PAIR), PLAIN, threshold=0.3)
    np.testing.assert_allclose(result.base, [SQUARE, SQUARE, -SQUARE], rtol=1e-5)
    np.testing.assert_array_equal(result.advantage, result.base)
    np.testing.assert_array_equal(result.alpha, 1)
    np.testing.assert_array_equal(result.target, 0)
    assert result.trained.all()
    assert result.threshold == pytest.approx(0.3)  # AEM's, passed on
    assert not np.any([result.normalised, result.outlier, result.extremity])


def test_aem_scales_the_base():
    result = credit(table(**PAIR), dataclasses.replace(PLAIN, aem=AEM), entropy=ENTROPY)
    np.testing.assert_allclose(result.alpha, ALPHA, rtol=1e-5)
    np.testing.assert_allclose(result.base, [SQUARE, SQUARE, -SQUARE], rtol=1e-5)
    np.testing.assert_allclose(result.advantage, result.alpha * result.base, rtol=1e-6)
    flat = credit(table(**PAIR), dataclasses.replace(PLAIN, aem=AEM, lam=0.0), entropy=ENTROPY)
    np.testing.assert_allclose(flat.alpha, 1, rtol=1e-6)


def test_empg_comes_before_aem():
    # g is AEM's alpha here (one group); the first response has a next one of entropy 1/2: + exp(-1) / 2
    value = np.array(ALPHA) * [SQUARE, SQUARE, -SQUARE] + [0.183940, 0, 0]
    settings = dataclasses.replace(PLAIN, empg=EMPG)
    result = credit(table(**PAIR), settings, entropy=ENTROPY)
    np.testing.assert_allclose(result.base, value - value.mean(), rtol=1e-4)
    np.testing.assert_array_equal(result.advantage, result.base)
    both = credit(table(**PAIR), dataclasses.replace(settings, aem=AEM), entropy=ENTROPY)
    np.testing.assert_array_equal(both.base, result.base)
    np.testing.assert_allclose(both.advantage, ALPHA * (value - value.mean()), rtol=1e-4)


@pytest.mark.parametrize("mode", ["advantage", "return", "none"])
def test_a_penalty_enters_once(mode):
    # trajectory 0 paid 0.2 for its second turn: returns 0.8 against 0 keep +-0.7071
    result = credit(
        table(**PAIR, penalty=[0.0, -0.2, 0.0]),
        dataclasses.replace(PLAIN, penalty=mode, aem=AEM),
        entropy=ENTROPY,
    )
    base = np.array([SQUARE, SQUARE, -SQUARE])
    np.testing.assert_allclose(result.base, base, rtol=1e-5)
    added = [0, -0.2, 0] if mode == "advantage" else [0, 0, 0]  # after alpha, at its own size
    np.testing.assert_allclose(result.advantage, ALPHA * base + added, rtol=1e-5)
    # in a group of failures only "return" makes a difference
    failures = table([0.0] * 3, [0, 0, 1], [0, 1, 0], penalty=[0.0, -0.2, 0.0])
    failed = credit(failures, dataclasses.replace(PLAIN, penalty=mode))
    expected = -base if mode == "return" else np.zeros(3)
    np.testing.assert_allclose(failed.base, expected, atol=1e-5)


def test_the_target_is_the_return_that_gae_estimates():
    # returns-to-go at gamma 1: 3, 1 and -1, whatever the values were; whitening changes the advantage only
    rows = table([3.0, 3.0, -1.0], [0, 0, 1], [0, 1, 0], reward=[2.0, 1.0, -1.0])
    settings = dataclasses.replace(PLAIN, estimator=GAE)
    result = credit(rows, settings, value=[0.5, 2.0, 1.0])
    np.testing.assert_allclose(result.target, [3, 1, -1], rtol=1e-6)
    np.testing.assert_allclose(result.advantage, [2.5, -1, -2], rtol=1e-6)
    white = credit(
        rows,
        dataclasses.replace(settings, estimator=dataclasses.replace(GAE, whiten=True)),
        value=[0.5, 2.0, 1.0],
    )
    np.testing.assert_array_equal(white.target, result.target)
    np.testing.assert_allclose(white.base.mean(), 0, atol=1e-6)
    np.testing.assert_allclose(white.base.std(ddof=1), 1, rtol=1e-5)
    # lam 0: one reward and the next value
    one = dataclasses.replace(settings, estimator=dataclasses.replace(GAE, gae_lam=0.0))
    np.testing.assert_allclose(credit(rows, one, value=[0.5, 2.0, 1.0]).target, [4, 1, -1], rtol=1e-6)


def test_gigpo_reads_step_groups_and_rewards():
    rows = table(
        [1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], [0, 1, 0, 1], reward=[0.0, 1.0, 0.0, 0.0], step_group=[0, 1, 0, 2]
    )
    result = credit(rows, dataclasses.replace(PLAIN, estimator=GIGPO))
    np.testing.assert_allclose(result.base, np.array([2, 1, -2, -1]) * SQUARE, rtol=1e-5)


def test_outliers_are_located_beside_the_credit():
    # 1, 2, 3 of one state: -1, 0, 1; alone 9; quartiles -0.25 and 3, fences -3.5 and 6.25
    rows = table([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], [0, 1, 0, 1], step_group=[0, 0, 0, 2])
    entropy = [1.0, 2.0, 3.0, 9.0]
    result = credit(rows, dataclasses.replace(PLAIN, outliers=OUTLIERS, aem=AEM), entropy=entropy)
    np.testing.assert_allclose(result.normalised, [-1, 0, 1, 9])
    np.testing.assert_array_equal(result.outlier, [False, False, False, True])
    np.testing.assert_allclose(result.extremity, [0, 0, 0, 2.75])
    without = credit(rows, dataclasses.replace(PLAIN, aem=AEM), entropy=entropy)
    np.testing.assert_array_equal(without.advantage, result.advantage)
    assert result.trained.all()


# who is trained on


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_a_row_without_an_outcome_enters_nothing(missing):
    settings = dataclasses.replace(FULL, sign_mask="none")
    lost = {"outcome": missing, "trajectory": 5, "turn": 0, "group": 1, "reward": 0.5, "penalty": -0.1}
    lost |= {"step_group": 2, "valid": True, "entropy": 40.0}
    columns = {name: np.append(column, lost[name]) for name, column in ragged().items()}
    entropy = columns.pop("entropy")
    masked = table(**(columns | {"valid": np.append(columns["valid"][:-1], False)}))
    one, other = (
        _assign(rows, *[jnp.asarray(np.r_[entropy, [np.nan] * 5], jnp.float32)] * 3, jnp.float32(0), settings)
        for rows in (table(**columns), masked)
    )
    for name in assign.Credit._fields:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert not one.trained[10] and one.trained[9]


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_a_row_without_a_value_is_not_trained_on_with_a_critic(missing):
    rows = table([3.0, 3.0, -1.0], [0, 0, 1], [0, 1, 0], reward=[2.0, 1.0, -1.0])
    result = credit(rows, dataclasses.replace(PLAIN, estimator=GAE), value=[0.5, missing, 1.0])
    np.testing.assert_allclose(result.target, [2, 0, -1], rtol=1e-6)
    np.testing.assert_allclose(result.advantage, [1.5, 0, -2], rtol=1e-6)
    assert result.trained.tolist() == [True, False, True]
    # nothing else reads values
    plain = credit(rows, PLAIN, value=[0.5, missing, 1.0])
    assert plain.trained.all() and np.isfinite(plain.advantage).all()


def test_sign_mask_numbers():
    advantage, alpha = jnp.array([1.0, 1.0, -1.0, -1.0, 2.0, 0.0]), jnp.array([1.5, 0.5, 1.5, 0.5, 1.0, 2.0])
    rising = assign.sign_mask(advantage, alpha, kind="rising")
    np.testing.assert_array_equal(rising, [False, True, True, False, False, False])
    falling = assign.sign_mask(advantage, alpha, kind="falling")
    np.testing.assert_array_equal(falling, [True, False, False, True, False, False])
    assert assign.sign_mask(advantage, alpha, kind="none").all()


def test_a_sign_mask_chooses_and_changes_no_advantage():
    # alpha is above 1 at the first response only: A * (alpha - 1) is > 0, < 0 and (both factors negative) > 0
    settings = dataclasses.replace(PLAIN, aem=AEM)
    every, rising, falling = (
        credit(table(**PAIR), dataclasses.replace(settings, sign_mask=kind), entropy=ENTROPY)
        for kind in assign.SIGN_MASKS
    )
    assert every.trained.tolist() == [True, True, True]
    assert rising.trained.tolist() == [False, True, False]
    assert falling.trained.tolist() == [True, False, True]
    for masked in (rising, falling):
        np.testing.assert_array_equal(masked.advantage, every.advantage)


# AEM's adaptive threshold


def test_the_adaptive_threshold_is_handed_on():
    aem = dataclasses.replace(AEM, quantile=0.5, quantile_decay=0.75)
    settings = dataclasses.replace(PLAIN, aem=aem)
    first = credit(table(**PAIR), settings, entropy=ENTROPY)
    assert first.threshold == pytest.approx(1.0, rel=1e-5)  # the range of the only group
    second = credit(table(**PAIR), settings, entropy=ENTROPY, threshold=0.2)
    assert second.threshold == pytest.approx(0.75 * 0.2 + 0.25 * 1.0, rel=1e-5)


def test_surprisal_is_what_the_proxy_says():
    settings = dataclasses.replace(PLAIN, aem=dataclasses.replace(AEM, proxy="surprisal"))
    result = credit(table(**PAIR), settings, entropy=[9.0] * 3, surprisal=ENTROPY)
    np.testing.assert_allclose(result.alpha, ALPHA, rtol=1e-5)


# laws of the whole


def ragged() -> dict[str, Any]:
    """Two groups, five trajectories; every stage has something to do. Row 4 is not valid."""
    random = np.random.default_rng(3)
    trajectory = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 4])
    columns = {
        "outcome": np.array([1.0, 0.0, 1.0, 0.0, 3.0])[trajectory],
        "trajectory": trajectory,
        "turn": np.array([0, 1, 2, 0, 1, 0, 1, 0, 1, 0]),
        "group": np.array([0, 0, 1, 1, 1])[trajectory],
        "reward": random.normal(size=10),
        "penalty": -0.1 * random.integers(0, 2, 10),
        "step_group": np.array([0, 1, 1, 0, 1, 2, 3, 2, 3, 2]),
        "valid": np.arange(10) != 4,
        "entropy": random.gamma(1.0, 1.0, 10),
    }
    for name in ("outcome", "reward", "penalty", "entropy"):
        columns[name] = np.where(columns["valid"], columns[name], np.nan)
    return columns


def full(columns, size=SIZE):
    columns = dict(columns)
    entropy = columns.pop("entropy")
    return credit(table(**columns, size=size), FULL, entropy=entropy, surprisal=entropy, value=entropy)


def test_row_order_never_matters():
    columns = ragged()
    order = np.random.default_rng(0).permutation(10)
    shuffled, base = full({name: column[order] for name, column in columns.items()}), full(columns)
    place = np.cumsum(columns["valid"]) - 1  # rows of `base` are the valid ones
    kept = place[order[columns["valid"][order]]]
    for name in ("base", "alpha", "advantage", "normalised"):
        one, other = getattr(shuffled, name), getattr(base, name)[kept]
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.ptp(other) > 0.3


def test_neither_padding_nor_a_row_that_is_not_valid_leaks():
    columns = ragged()
    alone = full({name: column[columns["valid"]] for name, column in columns.items()}, size=9)
    padded = full(columns)
    for one, other in zip(alone, padded, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_no_gradient_flows_through_it():
    settings = dataclasses.replace(FULL, estimator=dataclasses.replace(GAE, whiten=True), penalty="none")
    columns = {name: column[ragged()["valid"]] for name, column in ragged().items()}
    entropy = jnp.asarray(columns.pop("entropy"), jnp.float32)
    responses = table(**columns, size=9)

    @functools.partial(jax.grad, argnums=(0, 1, 2, 3))
    def gradients(entropy, surprisal, value, outcome):
        rows = dataclasses.replace(responses, outcome=outcome)
        result = assign.assign(rows, entropy, surprisal, value, None, jnp.float32(0), settings=settings)
        return sum(
            jnp.sum(jnp.square(x))
            for x in (result.base, result.alpha, result.advantage, result.target)
            + (result.normalised, result.extremity)
        )

    for gradient in jax.jit(gradients)(entropy, entropy, entropy, responses.outcome):
        np.testing.assert_array_equal(gradient, 0)


# settings


def test_settings_refuse_what_does_not_go_together():
    for changes, message in (
        ({"penalty": "step"}, r"unknown penalty='step'; known: advantage, response, return, none"),
        ({"penalty": "response"}, r'set credit\.unit="response"'),
        ({"sign_mask": "up", "aem": AEM}, r"unknown sign_mask='up'; known: none, rising, falling"),
        (
            {"sign_mask": "rising"},
            r"sign_mask='rising' reads AEM's coefficient; set credit\.aem\.enabled=True",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(PLAIN, **changes)
    twice = r"penalty='{}' does not go with estimator='{}', .*; set credit\.penalty=\"none\""
    for estimator, modes in ((GIGPO, ["advantage"]), (GAE, ["advantage", "response", "return"])):
        by_response = dataclasses.replace(estimator, unit="response")
        for mode in penalty.MODES:
            if mode in modes:
                with pytest.raises(ValueError, match=twice.format(mode, estimator.name)):
                    dataclasses.replace(PLAIN, estimator=by_response, penalty=mode)
            else:
                dataclasses.replace(PLAIN, estimator=by_response, penalty=mode)
    by_response = dataclasses.replace(GRPO, unit="response")
    assert dataclasses.replace(PLAIN, penalty="response", estimator=by_response).penalty == "response"
