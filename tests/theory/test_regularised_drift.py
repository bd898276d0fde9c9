"""Entropy drift with an entropy bonus and a KL penalty (AEM, remark 3.2.3 and theorem F.3.1).

Claim: with `+ beta * psi(H) - gamma * KL(pi || pi_ref)` in the objective the drift gains
`(beta * psi'(H) + gamma) * Var(S) - gamma * Cov(S, S_ref)`, the same for every sampled response. Forward
differentiation agrees to rounding (1e-11: `Var` and `Cov` are of size 1 to 10), the finite difference along
the flow to 1e-8 (entropy's higher derivatives are larger than without the extra terms).

What the claim needs: the gradient of the exact KL. Of the project's estimates k2 has it in expectation on
policy; k1 has none, and k3, the usual choice, gains `gamma * (E_ref[S] - H)` instead. That is the same only
to first order around the reference, and can have the other sign away from it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

from rl.objective import kl
from tests.theory import simplex

Policy = Float[Array, " R"]
RESPONSES = 5
BETA, GAMMA = 0.3, 0.8
POWERS = (1.0, 2.0, 0.5)  # psi(H) = H^power: positive and increasing


def divergence(policy: Policy, reference: Policy) -> Float[Array, ""]:
    return jnp.sum(policy * (jnp.log(policy) - jnp.log(reference)))


def covariance(policy: Policy, reference: Policy) -> float:
    """`Cov(S, S_ref)` under the policy; `Var(S)` when both are the same."""
    first, second = jnp.log(policy), jnp.log(reference)
    return float(jnp.sum(policy * (first - policy @ first) * (second - policy @ second)))


def objective(
    response: int | Int[Array, ""],
    advantage: float,
    reference: Policy,
    beta: float,
    power: float,
    gamma: float,
) -> simplex.Objective:
    def value(policy: Policy) -> Float[Array, ""]:
        reward = advantage * jnp.log(policy[response]) + beta * simplex.entropy(policy) ** power
        return reward - gamma * divergence(policy, reference)

    return value


def gain(policy: Policy, reference: Policy, *, beta: float, power: float, gamma: float) -> float:
    slope = power * float(simplex.entropy(policy)) ** (power - 1)
    expanding = (beta * slope + gamma) * covariance(policy, policy)
    return expanding - gamma * covariance(policy, reference)


def pair(seed: int) -> tuple[Policy, Policy]:
    return (
        simplex.random_policy(seed, responses=RESPONSES),
        simplex.random_policy(seed + 100, responses=RESPONSES),
    )


@pytest.mark.parametrize("advantage", [1.3, -0.7])
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("seed", range(3))
def test_drift_with_bonus_and_penalty(seed: int, power: float, advantage: float) -> None:
    policy, reference = pair(seed)
    drift, difference = simplex.measured(objective, policy, advantage, reference, BETA, power, GAMMA)
    extra = gain(policy, reference, beta=BETA, power=power, gamma=GAMMA)
    want = advantage * np.asarray(simplex.relative_surprisal(policy)) + extra
    np.testing.assert_allclose(drift, want, rtol=0, atol=1e-11)
    np.testing.assert_allclose(difference, want, rtol=0, atol=1e-8)


def test_wrong_terms_break_it() -> None:
    policy, reference = pair(0)
    drift, _ = simplex.measured(objective, policy, 1.3, reference, BETA, 2.0, GAMMA)
    extra = float((drift - 1.3 * simplex.relative_surprisal(policy))[0])
    right = gain(policy, reference, beta=BETA, power=2.0, gamma=GAMMA)
    variance, cross = covariance(policy, policy), covariance(policy, reference)
    wrong = {
        "psi' left out": (BETA + GAMMA) * variance - GAMMA * cross,
        "no expansion by the penalty": right - GAMMA * variance,
        "no covariance": right + GAMMA * cross,
        "covariance of the other sign": right + 2 * GAMMA * cross,
    }
    assert extra == pytest.approx(right, abs=1e-11)
    assert {name for name, value in wrong.items() if abs(extra - value) < 0.02} == set()


def test_gain_is_the_same_for_every_response() -> None:
    policy, reference = pair(1)
    drift, _ = simplex.measured(objective, policy, 1.0, reference, BETA, 2.0, GAMMA)
    gains_here = drift - simplex.relative_surprisal(policy)
    np.testing.assert_allclose(gains_here, gains_here[0], atol=1e-11)
    assert np.ptp(drift) > 0.5


# consequences


def test_bonus_alone_expands_and_stops_at_the_uniform_policy() -> None:
    policy, reference = pair(2)
    uniform = jnp.asarray(np.full(RESPONSES, 1 / RESPONSES))
    _, expanding = simplex.measured(objective, policy, 0.0, reference, BETA, 2.0, 0.0)
    stopped, _ = simplex.measured(objective, uniform, 0.0, reference, BETA, 2.0, 0.0)
    assert expanding[0] > 0.1
    np.testing.assert_allclose(stopped, 0, atol=1e-12)


@pytest.mark.parametrize(("power", "share"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0), (2.0, -1.0)])
def test_penalty_expands_towards_a_flatter_reference_and_contracts_towards_a_sharper_one(
    power: float, share: float
) -> None:
    """`pi_ref ~ pi^power` has `S_ref = power * S + constant`: the gain is `gamma * (1 - power) * Var(S)`."""
    policy = simplex.random_policy(3, responses=RESPONSES)
    reference = policy**power / jnp.sum(policy**power)
    drift, difference = simplex.measured(objective, policy, 0.0, reference, 0.0, 1.0, GAMMA)
    want = GAMMA * share * covariance(policy, policy)
    np.testing.assert_allclose(drift, want, rtol=0, atol=1e-11)
    np.testing.assert_allclose(difference, want, rtol=0, atol=1e-8)


# the project's estimates of the KL, as they enter its loss


@partial(jax.jit, static_argnames="kind")
def estimated_drift(policy: Policy, reference: Policy, *, kind: str) -> Float[Array, ""]:
    """Drift of `-gamma * E[estimate]` on policy: the sampling carries no gradient."""

    def value(p: Policy) -> Float[Array, ""]:
        everywhere = jnp.ones((1, RESPONSES), bool)
        terms = kl.kl(jnp.log(p)[None], jnp.log(reference)[None], everywhere, kind=kind)[0]
        return -GAMMA * jnp.sum(jax.lax.stop_gradient(p) * terms)

    return simplex.drift(value, policy)


def gains(policy: Policy, reference: Policy) -> dict[str, float]:
    """What each estimate should gain."""
    exact = GAMMA * (covariance(policy, policy) - covariance(policy, reference))
    return {"k1": 0.0, "k2": exact, "k3": GAMMA * float(reference @ simplex.relative_surprisal(policy))}


@pytest.mark.parametrize("kind", kl.KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_gain_of_each_estimate(seed: int, kind: str) -> None:
    policy, reference = pair(seed)
    drift = float(estimated_drift(policy, reference, kind=kind))
    assert drift == pytest.approx(gains(policy, reference)[kind], abs=1e-11)


def test_k1_and_k3_are_not_the_theorem_s() -> None:
    policy, reference = pair(0)
    want = gains(policy, reference)
    assert abs(want["k2"] - want["k1"]) > 0.1
    assert abs(want["k2"] - want["k3"]) > 0.1


def test_k3_can_push_entropy_the_other_way() -> None:
    policy, reference = pair(12)
    exact, _ = simplex.measured(objective, policy, 0.0, reference, 0.0, 1.0, GAMMA)
    k3 = estimated_drift(policy, reference, kind="k3")
    assert exact[0] < -0.1
    assert k3 > 0.05


def test_k3_is_the_theorem_s_near_the_reference_only() -> None:
    policy, other = pair(4)
    gaps = []
    for distance in (1e-2, 1e-3):
        want = gains(policy, policy + distance * (other - policy))
        gaps.append(abs(want["k3"] / want["k2"] - 1))
    assert gaps[0] < 0.1
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.1)  # an error of first order in the distance
