"""Natural-gradient flow of a categorical policy on the probability simplex with the Fisher-Rao metric."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Objective = Callable[[Float[Array, " R"]], Float[Array, ""]]


def random_policy(seed: int, *, responses: int) -> Float[Array, " R"]:
    """Returns a policy away from the faces of the simplex: no probability below 0.02."""
    policy = np.random.default_rng(seed).dirichlet(np.ones(responses))
    return jnp.asarray(0.02 + (1 - 0.02 * responses) * policy)


def entropy(policy: Float[Array, " R"]) -> Float[Array, ""]:
    """Returns the response-level entropy, in nats."""
    return -jnp.sum(policy * jnp.log(policy))


def relative_surprisal(policy: Float[Array, " R"]) -> Float[Array, " R"]:
    """Returns `S(a) - H` of every response."""
    return -jnp.log(policy) - entropy(policy)


def sampled(response: int | Int[Array, ""], advantage: float | Float[Array, ""]) -> Objective:
    """Returns the objective of one sampled response, `A * log pi(a)`."""
    return lambda policy: advantage * jnp.log(policy[response])


def natural_gradient(objective: Objective, policy: Float[Array, " R"]) -> Float[Array, " R"]:
    """Returns the gradient in the metric `g(u, v) = sum_b u_b v_b / pi_b`, tangent to the simplex."""
    slope = jax.grad(objective)(policy)
    return policy * (slope - jnp.sum(policy * slope))


def euclidean_gradient(objective: Objective, policy: Float[Array, " R"]) -> Float[Array, " R"]:
    """Returns the gradient in the metric `sum_b u_b v_b`: the wrong one."""
    slope = jax.grad(objective)(policy)
    return slope - jnp.mean(slope)


def drift(
    objective: Objective, policy: Float[Array, " R"], *, gradient: Callable = natural_gradient
) -> Float[Array, ""]:
    """Returns the derivative of entropy along the gradient of the objective, by forward differentiation."""
    return jax.jvp(entropy, (policy,), (gradient(objective, policy),))[1]


def flow(
    objective: Objective, policy: Float[Array, " R"], *, time: float | Float[Array, ""], steps: int = 1
) -> Float[Array, " R"]:
    """Returns the policy after `time` along `d pi / dt = natural_gradient`, by Runge-Kutta of order 4."""
    size = time / steps

    def step(_: int, at: Float[Array, " R"]) -> Float[Array, " R"]:
        first = natural_gradient(objective, at)
        second = natural_gradient(objective, at + size / 2 * first)
        third = natural_gradient(objective, at + size / 2 * second)
        fourth = natural_gradient(objective, at + size * third)
        return at + size / 6 * (first + 2 * second + 2 * third + fourth)

    return jax.lax.fori_loop(0, steps, step, policy)


def difference(objective: Objective, policy: Float[Array, " R"], *, width: float = 1e-4) -> Float[Array, ""]:
    """Returns the slope of entropy along the flow from its values at `-2, -1, 1, 2` times `width`."""
    times = width * jnp.arange(-2, 3)
    values = jax.vmap(lambda time: entropy(flow(objective, policy, time=time)))(times)
    return jnp.array([1.0, -8.0, 0.0, 8.0, -1.0]) @ values / (12 * width)


@partial(jax.jit, static_argnames="of")
def measured(
    of: Callable[..., Objective], policy: Float[Array, " R"], *arguments: Any
) -> tuple[Float[Array, " R"], Float[Array, " R"]]:
    """Returns the drift and its finite difference for `of(response, *arguments)`, every response."""

    def one(response: Int[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        objective = of(response, *arguments)
        return drift(objective, policy), difference(objective, policy)

    return jax.vmap(one)(jnp.arange(policy.shape[0]))
