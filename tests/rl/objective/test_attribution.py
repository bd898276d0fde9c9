"""STAPO's two terms: a float64 reference, numbers, masks, laws."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.objective import aggregate
from rl.objective.attribution import AttributionSettings, attribution

SETTINGS = AttributionSettings(reward_coef=0.5, penalty_coef=0.25)
# two located responses of 2 and 1 tokens; the batch has 4 trained responses
IDS = jnp.array([[-1, 0, 0, -1], [-1, -1, 2, -1]])
VALID = jnp.array([True, True, True, True])
REWARD = jnp.array([[9.0, 1.0, 3.0, 9.0], [9.0, 9.0, 0.5, 9.0]])
PENALTY = jnp.array([[9.0, 0.2, 0.6, 9.0], [9.0, 9.0, 4.0, 9.0]])


def counts(responses: float) -> aggregate.Denominators:
    return aggregate.Denominators(jnp.float32(99), jnp.float32(responses), jnp.ones(VALID.shape))


def terms(
    reward: Any = REWARD, penalty: Any = PENALTY, valid: Any = VALID, responses: float = 4, **settings: Any
):
    chosen = AttributionSettings(**settings) if settings else SETTINGS
    return attribution(reward, penalty, IDS, valid, counts(responses), settings=chosen)


def test_numbers() -> None:
    out = terms()
    np.testing.assert_allclose(out.reward, [2.0, 0, 0.5, 0])
    np.testing.assert_allclose(out.penalty, [0.4, 0, 4.0, 0], rtol=1e-6)
    # -(0.5 * (2 + 0.5) - 0.25 * (0.4 + 4)) / 4
    assert float(out.loss) == pytest.approx(-(1.25 - 1.1) / 4, abs=1e-7)


def test_against_float64() -> None:
    rng = np.random.default_rng(0)
    ids = np.full((3, 12), -1)
    for r, (row, start, length) in enumerate([(0, 1, 3), (0, 6, 1), (1, 0, 12), (2, 5, 4), (2, 10, 2)]):
        ids[row, start : start + length] = r
    reward, penalty = rng.gamma(1.0, 1.0, (2, 3, 12))
    valid = np.array([True, False, True, True, True, False])
    want = [sum(x[ids == r].mean() if valid[r] else 0 for r in range(5)) for x in (reward, penalty)]
    out = attribution(
        jnp.asarray(reward),
        jnp.asarray(penalty),
        jnp.asarray(ids),
        jnp.asarray(valid),
        counts(7),
        settings=SETTINGS,
    )
    assert float(out.loss) == pytest.approx(-(0.5 * want[0] - 0.25 * want[1]) / 7, rel=1e-5)


def test_micro_batches_add_up() -> None:
    parts = [
        attribution(
            REWARD[n : n + 1], PENALTY[n : n + 1], IDS[n : n + 1], VALID, counts(4), settings=SETTINGS
        )
        for n in range(2)
    ]
    whole = terms()
    assert float(sum(p.loss for p in parts)) == pytest.approx(float(whole.loss))
    np.testing.assert_allclose(sum(p.reward for p in parts), whole.reward)


def test_gradient_is_the_coefficient_over_length_and_responses_and_reads_nothing_else() -> None:
    def loss(reward: Any, penalty: Any, valid: Any = VALID) -> Any:
        return terms(jnp.where(IDS >= 0, reward, jnp.nan), jnp.where(IDS >= 0, penalty, jnp.inf), valid).loss

    of_reward, of_penalty = jax.grad(loss, argnums=(0, 1))(REWARD, PENALTY)
    expected = np.zeros((2, 4))
    expected[0, 1:3], expected[1, 2] = 1 / 2, 1
    np.testing.assert_allclose(of_reward, -0.5 * expected / 4)
    np.testing.assert_allclose(of_penalty, 0.25 * expected / 4)
    none = jnp.zeros(4, bool)
    assert float(loss(REWARD, PENALTY, none)) == 0
    np.testing.assert_array_equal(jax.grad(loss)(REWARD, PENALTY, none), 0)


def test_a_batch_without_responses_is_no_division_by_zero() -> None:
    assert np.isfinite(terms(responses=0).loss)


def test_coefficients_switch_terms_off() -> None:
    assert float(terms(reward_coef=0.5).loss) == pytest.approx(-1.25 / 4)
    assert float(terms(penalty_coef=0.25).loss) == pytest.approx(1.1 / 4)
    assert not AttributionSettings().enabled
    assert AttributionSettings(penalty_coef=0.1).enabled


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "k2"}, "unknown kind='k2'; known: full, k1, k3"),
        ({"reward_coef": -0.1}, "must not be negative"),
        ({"reward_coef": 0.1, "stop_gradient_full": True, "stop_gradient_masked": True}, "has no effect"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttributionSettings(**settings)
