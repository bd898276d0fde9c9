"""Entropy drift with an entropy bonus and a KL penalty (AEM, remark 3.2.3 and theorem F.3.1).

Claim: with `+ beta * psi(H) - gamma * KL(pi || pi_ref)` in the objective the drift gains
`(beta * psi'(H) + gamma) * Var(S) - gamma * Cov(S, S_ref)`, the same for every sampled response. Forward
differentiation agrees to rounding (1e-11: `Var` and `Cov` are of size 1 to 10), the central difference along the
flow to 1e-7 (its third derivative is larger than without the extra terms).

What the claim needs: the gradient of the exact KL. Of the project's per-token estimates k2 has it in expectation
on policy; k1 has none, and k3, the usual choice, gains `gamma * (E_ref[S] - H)` instead. That is the same only to
first order around the reference, and can have the other sign away from it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from rl.objective import kl
from tests.theory import simplex

Policy = Float[Array, " R"]
RESPONSES = 5
BETA, GAMMA = 0.3, 0.8
BONUSES: dict[str, Callable] = {"identity": lambda h: h, "square": jnp.square, "exp": jnp.exp}


def divergence(policy: Policy, reference: Policy) -> Float[Array, ""]:
    return jnp.sum(policy * (jnp.log(policy) - jnp.log(reference)))


def covariance(policy: Policy, reference: Policy) -> float:
    """`Cov(S, S_ref)` under the policy; `Var(S)` when both are the same."""
    first, second = jnp.log(policy), jnp.log(reference)
    return float(jnp.sum(policy * (first - policy @ first) * (second - policy @ second)))


def objective(
    response: int, advantage: float, reference: Policy, bonus: Callable, *, beta: float, gamma: float
) -> simplex.Objective:
    def value(policy: Policy) -> Float[Array, ""]:
        reward = advantage * jnp.log(policy[response]) + beta * bonus(simplex.entropy(policy))
        return reward - gamma * divergence(policy, reference)

    return value


def gain(policy: Policy, reference: Policy, bonus: Callable, *, beta: float, gamma: float) -> float:
    slope = float(jax.grad(bonus)(simplex.entropy(policy)))
    expanding = (beta * slope + gamma) * covariance(policy, policy)
    return expanding - gamma * covariance(policy, reference)


def pair(seed: int) -> tuple[Policy, Policy]:
    return (
        simplex.random_policy(seed, responses=RESPONSES),
        simplex.random_policy(seed + 100, responses=RESPONSES),
    )


@pytest.mark.parametrize("advantage", [1.3, -0.7])
@pytest.mark.parametrize("name", BONUSES)
@pytest.mark.parametrize("seed", range(2))
def test_drift_with_bonus_and_penalty(seed: int, name: str, advantage: float) -> None:
    (policy, reference), bonus = pair(seed), BONUSES[name]
    extra = gain(policy, reference, bonus, beta=BETA, gamma=GAMMA)
    for response in range(0, RESPONSES, 2):
        target = objective(response, advantage, reference, bonus, beta=BETA, gamma=GAMMA)
        want = advantage * float(simplex.relative_surprisal(policy)[response]) + extra
        assert float(simplex.drift(target, policy)) == pytest.approx(want, abs=1e-11)
        assert simplex.difference(target, policy) == pytest.approx(want, abs=1e-7)


def test_wrong_terms_break_it() -> None:
    policy, reference = pair(0)
    target = objective(0, 1.3, reference, BONUSES["square"], beta=BETA, gamma=GAMMA)
    extra = float(simplex.drift(target, policy)) - 1.3 * float(simplex.relative_surprisal(policy)[0])
    right = gain(policy, reference, BONUSES["square"], beta=BETA, gamma=GAMMA)
    variance, cross = covariance(policy, policy), covariance(policy, reference)
    no_slope = (BETA + GAMMA) * variance - GAMMA * cross
    no_expansion = right - GAMMA * variance
    other_sign = right + 2 * GAMMA * cross
    assert extra == pytest.approx(right, abs=1e-11)
    for wrong in (no_slope, no_expansion, other_sign, right + GAMMA * cross):
        assert abs(extra - wrong) > 0.02


def test_gain_is_the_same_for_every_response() -> None:
    policy, reference = pair(1)
    gains = []
    for response in range(RESPONSES):
        target = objective(response, 1.0, reference, BONUSES["exp"], beta=BETA, gamma=GAMMA)
        gains.append(
            float(simplex.drift(target, policy)) - float(simplex.relative_surprisal(policy)[response])
        )
    np.testing.assert_allclose(gains, gains[0], atol=1e-11)


# consequences


def test_bonus_alone_expands_and_stops_at_the_uniform_policy() -> None:
    policy, reference = pair(2)
    alone = objective(0, 0.0, reference, BONUSES["exp"], beta=BETA, gamma=0.0)
    assert simplex.difference(alone, policy) > 0.1
    uniform = jnp.full(RESPONSES, 1 / RESPONSES)
    assert float(simplex.drift(alone, uniform)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("power", "share"), [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0), (2.0, -1.0)])
def test_penalty_expands_towards_a_flatter_reference_and_contracts_towards_a_sharper_one(
    power: float, share: float
) -> None:
    """`pi_ref ~ pi^power` has `S_ref = power * S + constant`: the gain is `gamma * (1 - power) * Var(S)`."""
    policy = simplex.random_policy(3, responses=RESPONSES)
    reference = policy**power / jnp.sum(policy**power)
    target = objective(0, 0.0, reference, BONUSES["identity"], beta=0.0, gamma=GAMMA)
    want = GAMMA * share * covariance(policy, policy)
    assert float(simplex.drift(target, policy)) == pytest.approx(want, abs=1e-11)
    assert simplex.difference(target, policy) == pytest.approx(want, abs=1e-7)


# the project's estimates of the KL, as they enter its loss


def estimated(kind: str, reference: Policy) -> simplex.Objective:
    """`-gamma * E[estimate]` over responses of the current policy: the sampling carries no gradient."""

    def value(policy: Policy) -> Float[Array, ""]:
        everywhere = jnp.ones((1, RESPONSES), bool)
        terms = kl.kl(jnp.log(policy)[None], jnp.log(reference)[None], everywhere, kind=kind)[0]
        return -GAMMA * jnp.sum(jax.lax.stop_gradient(policy) * terms)

    return value


def gains(policy: Policy, reference: Policy) -> dict[str, float]:
    """What each estimate should gain."""
    exact = GAMMA * (covariance(policy, policy) - covariance(policy, reference))
    return {"k1": 0.0, "k2": exact, "k3": GAMMA * float(reference @ simplex.relative_surprisal(policy))}


@pytest.mark.parametrize("kind", kl.KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_gain_of_each_estimate(seed: int, kind: str) -> None:
    policy, reference = pair(seed)
    drift = float(simplex.drift(estimated(kind, reference), policy))
    assert drift == pytest.approx(gains(policy, reference)[kind], abs=1e-11)


def test_k1_and_k3_are_not_the_theorem_s() -> None:
    policy, reference = pair(0)
    want = gains(policy, reference)
    assert abs(want["k2"] - want["k1"]) > 0.1
    assert abs(want["k2"] - want["k3"]) > 0.1


def test_k3_is_the_theorem_s_near_the_reference_only() -> None:
    policy, other = pair(4)
    gaps = []
    for distance in (1e-2, 1e-3):
        want = gains(policy, policy + distance * (other - policy))
        gaps.append(abs(want["k3"] / want["k2"] - 1))
    assert gaps[0] < 0.1
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.1)  # an error of first order in the distance
