"""Entropy drift of a sampled response under a natural-gradient step (AEM, section 3.2.2).

Claim: along the Fisher-Rao gradient of `A * log pi(a)` the entropy of the policy changes at the rate
`A * (S(a) - H)`, `S = -log pi`. By forward differentiation the two agree to rounding (1e-12; probabilities
of at least 0.02 keep `1 / pi` small). A finite difference of order 4 and width 1e-4 along the flow has an
error near 1e-11 from its width and 1e-12 from rounding, times the steep slopes of small probabilities: 1e-9.
Where the Fisher matrix of token logits is inverted numerically, its condition, near 1e3, costs a few digits:
1e-11.

What the claim needs: the metric, an exact step in response space, and a visitation that does not move. A
plain gradient step gives another number, and even another sign.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

from rl.objective import surrogate
from tests.theory import simplex, toys

RESPONSES = 5
COMMON, RARE = 0, 4
SKEWED = (0.6, 0.1, 0.1, 0.1, 0.1)  # surprisal 0.51 and 2.30 around H = 1.23


def predicted(policy: Float[Array, " R"], advantage: float) -> np.ndarray:
    return advantage * np.asarray(simplex.relative_surprisal(policy))


# the metric and the flow


def test_gradient_represents_the_differential_in_the_fisher_rao_metric() -> None:
    policy, objective = simplex.random_policy(0, responses=RESPONSES), simplex.sampled(2, 1.3)
    tangent = np.random.default_rng(0).normal(size=RESPONSES)
    tangent -= tangent.mean()
    differential = jax.jvp(objective, (policy,), (jnp.asarray(tangent),))[1]
    gradient = simplex.natural_gradient(objective, policy)
    assert float(gradient.sum()) == pytest.approx(0, abs=1e-12)
    assert float(jnp.sum(gradient * tangent / policy)) == pytest.approx(float(differential), abs=1e-12)
    wrong = simplex.euclidean_gradient(objective, policy)
    assert abs(float(jnp.sum(wrong * tangent / policy) - differential)) > 0.1


@pytest.mark.parametrize("advantage", [0.8, -0.8])
def test_flow_has_its_closed_form(advantage: float) -> None:
    """`pi(t) = e_a + (pi - e_a) exp(-A t)`: a negative advantage moves away from the corner."""
    policy = simplex.random_policy(1, responses=RESPONSES)
    corner = jnp.eye(RESPONSES)[3]
    ahead = simplex.flow(simplex.sampled(3, advantage), policy, time=0.02, steps=4)
    np.testing.assert_allclose(ahead, corner + (policy - corner) * np.exp(-advantage * 0.02), atol=1e-12)


# the claim


@pytest.mark.parametrize("advantage", [1.3, -0.7])
@pytest.mark.parametrize("seed", range(3))
def test_drift_is_advantage_times_relative_surprisal(seed: int, advantage: float) -> None:
    policy = simplex.random_policy(seed, responses=RESPONSES)
    drift, difference = simplex.measured(simplex.sampled, policy, advantage)
    np.testing.assert_allclose(drift, predicted(policy, advantage), rtol=0, atol=1e-12)
    np.testing.assert_allclose(difference, predicted(policy, advantage), rtol=0, atol=1e-9)


def test_drift_adds_up_along_the_flow() -> None:
    """Entropy after a long way is entropy before plus the integral of the drift (Gauss-Legendre)."""
    policy, objective, span = simplex.random_policy(2, responses=RESPONSES), simplex.sampled(1, 1.3), 0.6
    points, weights = np.polynomial.legendre.leggauss(12)
    times = jnp.asarray(np.append(span * (points + 1) / 2, span))
    path = jax.vmap(lambda time: simplex.flow(objective, policy, time=time, steps=64))(times)
    total = span / 2 * sum(w * predicted(here, 1.3)[1] for w, here in zip(weights, path[:-1]))
    # Runge-Kutta's step is 0.01: an error of 0.01^4 = 1e-8 times a constant below 1
    assert float(simplex.entropy(path[-1]) - simplex.entropy(policy)) == pytest.approx(total, abs=1e-8)


def test_signs() -> None:
    """Rare and rewarded, or common and punished: entropy rises. Otherwise it falls."""
    _, rewarded = simplex.measured(simplex.sampled, jnp.asarray(np.array(SKEWED)), 1.0)
    _, punished = simplex.measured(simplex.sampled, jnp.asarray(np.array(SKEWED)), -1.0)
    assert rewarded[COMMON] < 0 < rewarded[RARE]
    assert punished[RARE] < 0 < punished[COMMON]


def test_no_drift_from_a_uniform_policy() -> None:
    uniform = jnp.asarray(np.full(RESPONSES, 1 / RESPONSES))
    drift, _ = simplex.measured(simplex.sampled, uniform, 1.0)
    np.testing.assert_allclose(drift, 0, atol=1e-12)


# sums over responses


def test_a_constant_advantage_has_no_drift_on_average() -> None:
    policy = simplex.random_policy(3, responses=RESPONSES)
    drift, _ = simplex.measured(simplex.sampled, policy, -1.0)
    assert float(policy @ drift) == pytest.approx(0, abs=1e-12)
    assert np.abs(drift).max() > 0.1


def test_drift_of_a_batch_is_the_sum_and_on_average_a_covariance() -> None:
    """A batch adds its responses' drifts; the exact policy gradient of `E[A]` drifts by `Cov(A, S)`."""
    policy = simplex.random_policy(4, responses=RESPONSES)
    advantage = jnp.asarray(np.random.default_rng(4).normal(size=RESPONSES))
    relative = simplex.relative_surprisal(policy)
    batch = jnp.array([0, 3, 3, 1])

    def drift(objective: simplex.Objective) -> float:
        return float(jax.jit(lambda p: simplex.drift(objective, p))(policy))

    summed = drift(lambda p: jnp.sum(advantage[batch] * jnp.log(p[batch])))
    assert summed == pytest.approx(float(advantage[batch] @ relative[batch]), abs=1e-12)

    covariance = float(jnp.sum(policy * advantage * relative))
    assert drift(lambda p: jnp.sum(p * advantage)) == pytest.approx(covariance, abs=1e-12)
    assert abs(covariance - float(jnp.mean(advantage * relative))) > 0.05  # weighted by the policy


@pytest.mark.parametrize("state", [0, 2])
def test_policy_entropy_drifts_by_the_weight_of_the_state(state: int) -> None:
    """With visitation frozen, as the paper assumes; when it moves too the derivative is another."""
    policy = jnp.stack([simplex.random_policy(10 + s, responses=4) for s in range(3)])
    process = toys.random_process(2, states=3, responses=4, horizon=3)
    visits = toys.visitation(process, policy)
    gradient = simplex.natural_gradient(simplex.sampled(2, -0.7), policy[state])
    direction = jnp.zeros_like(policy).at[state].set(gradient)

    def frozen(p: Float[Array, "S R"]) -> Float[Array, ""]:
        return jnp.sum(visits @ jax.vmap(simplex.entropy)(p))

    def moving(p: Float[Array, "S R"]) -> Float[Array, ""]:
        return jnp.sum(toys.visitation(process, p) @ jax.vmap(simplex.entropy)(p))

    def slope(of: Callable) -> float:
        return float(jax.jit(lambda p, v: jax.jvp(of, (p,), (v,))[1])(policy, direction))

    want = float(visits[:, state].sum()) * predicted(policy[state], -0.7)[2]
    assert slope(frozen) == pytest.approx(want, abs=1e-12)
    assert abs(slope(moving) - want) > 1e-3


# an autoregressive policy, stepped through its token logits by the project's loss


TREE = toys.response_tree(vocabulary=3, length=3)


def ascent(
    logits: Float[Array, "P V"], response: Int[Array, ""], advantage: Float[Array, ""]
) -> Float[Array, "P V"]:
    """Minus the gradient of the project's clipped surrogate, on policy, summed over one response's tokens."""
    mask = jnp.asarray(TREE.mask)[response][None]

    def loss(z: Float[Array, "P V"]) -> Float[Array, ""]:
        logp = toys.token_logp(z, TREE)[response][None]
        shared = jnp.where(mask, advantage, 0.0)
        ratio = logp - jax.lax.stop_gradient(logp)
        return jnp.sum(surrogate.clipped(ratio, shared, mask, clip_low=0.2, clip_high=0.2).loss)

    return -jax.grad(loss)(logits)


@jax.jit
def drifts(
    logits: Float[Array, "P V"], advantage: Float[Array, ""]
) -> tuple[Float[Array, " R"], Float[Array, " R"]]:
    """Returns every response's drift along its natural gradient in token logits, and along its plain one."""
    policy = toys.probability(logits, TREE)
    jacobian = jax.jacobian(lambda z: toys.token_logp(z, TREE).sum(-1))(logits)
    jacobian = jacobian.reshape(len(policy), -1)
    fisher = jacobian.T @ (policy[:, None] * jacobian)  # of whole responses
    inverse = jnp.linalg.pinv(fisher, rtol=1e-12, hermitian=True)

    def along(direction: Float[Array, "P V"]) -> Float[Array, ""]:
        def entropy(z: Float[Array, "P V"]) -> Float[Array, ""]:
            return simplex.entropy(toys.probability(z, TREE))

        return jax.jvp(entropy, (logits,), (direction,))[1]

    def one(response: Int[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        slope = ascent(logits, response, advantage)
        return along((inverse @ slope.ravel()).reshape(slope.shape)), along(slope)

    return jax.vmap(one)(jnp.arange(len(policy)))


@pytest.mark.parametrize("advantage", [1.3, -0.7])
def test_the_project_s_loss_drifts_so_in_token_logits(advantage: float) -> None:
    logits = toys.random_logits(0, TREE)
    natural, _ = drifts(logits, advantage)
    want = predicted(toys.probability(logits, TREE), advantage)
    np.testing.assert_allclose(natural, want, rtol=0, atol=1e-11)


# what breaks it


def test_a_plain_gradient_has_another_drift_and_even_another_sign() -> None:
    natural, plain = (np.stack(d) for d in zip(*(drifts(toys.random_logits(s, TREE), 1.0) for s in range(3))))
    assert np.abs(natural - plain).max() > 0.1
    assert (np.sign(natural) != np.sign(plain)).any()


def test_the_euclidean_metric_of_the_simplex_is_another_drift() -> None:
    policy = simplex.random_policy(0, responses=RESPONSES)
    wrong = simplex.drift(simplex.sampled(0, 1.0), policy, gradient=simplex.euclidean_gradient)
    assert abs(float(wrong) - predicted(policy, 1.0)[0]) > 0.1


def test_surprisal_alone_is_not_the_drift() -> None:
    """Without `H` a common response that is rewarded would raise entropy."""
    _, difference = simplex.measured(simplex.sampled, jnp.asarray(np.array(SKEWED)), 1.0)
    assert difference[COMMON] < 0 < -np.log(SKEWED[COMMON])
