"""What STAPO adds at located responses (STAPO, section 4.2): a trajectory-aware reward and a trajectory-independent
penalty, both divergences along the sampled response.

    R_TA = KL[pi(.|c) || pi(.|c_blind)]        P_TI = KL[pi(.|c_blind) || pi_ref(.|c_blind)]
    J_sel = mean over all responses of  M * (reward_coef * R_TA - penalty_coef * P_TI)

Each is the mean over the response's tokens; which responses are located (M) is `rl.credit.outliers`' business.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rl.objective import aggregate
from rl.objective.aggregate import Denominators

# full: exact, over the vocabulary; k1, k3: estimates from the sampled tokens alone (rl.objective.kl).
KINDS = ("full", "k1", "k3")


@dataclass(frozen=True)
class AttributionSettings:
    """What the config says about the two terms; checked when built. A coefficient of 0 switches its term off."""

    reward_coef: float = 0.0  # alpha of the paper
    penalty_coef: float = 0.0  # gamma of the paper
    kind: str = "full"
    stop_gradient_full: bool = False  # R_TA moves the policy under the full context
    stop_gradient_masked: bool = False  # R_TA moves the policy under the blind context

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind={self.kind!r}; known: {', '.join(KINDS)}")
        if self.reward_coef < 0 or self.penalty_coef < 0:
            raise ValueError(
                f"reward_coef={self.reward_coef} and penalty_coef={self.penalty_coef} must not be negative"
            )
        if self.reward_coef and self.stop_gradient_full and self.stop_gradient_masked:
            raise ValueError("with both gradients of the trajectory-aware reward stopped it has no effect")

    @property
    def enabled(self) -> bool:
        return self.reward_coef > 0 or self.penalty_coef > 0


class Attribution(NamedTuple):
    """`loss` is a scalar; the rest [R] without gradient, 0 at responses that this block does not hold."""

    loss: Array
    reward: Array  # R_TA, nats
    penalty: Array  # P_TI, nats


def attribution(
    reward: Float[Array, "b t"],
    penalty: Float[Array, "b t"],
    response_id: Int[Array, "b t"],
    valid: Bool[Array, " R"],
    denominators: Denominators,
    *,
    settings: AttributionSettings,
) -> Attribution:
    """Returns this block's share of `-J_sel`, and both terms of each of its responses.

    `reward` and `penalty` are the divergences at every token and carry the gradient; `response_id` is -1 outside the
    located responses, of which only `valid` ones count. `denominators` are those of the optimizer step.
    """
    mask = aggregate.token_mask(response_id, valid)
    size = valid.shape[0]
    ids = jnp.where(mask, response_id, size).ravel()  # out of range: dropped

    def mean(values: Array) -> Array:
        values = jnp.where(mask, values.astype(jnp.promote_types(values.dtype, jnp.float32)), 0)
        total = jax.ops.segment_sum(values.ravel(), ids, num_segments=size)
        return total / jnp.maximum(
            jax.ops.segment_sum(mask.ravel().astype(total.dtype), ids, num_segments=size), 1
        )

    aware, independent = mean(reward), mean(penalty)
    gain = settings.reward_coef * aware - settings.penalty_coef * independent
    loss = -jnp.sum(gain) / jnp.maximum(denominators.responses, 1)
    return Attribution(loss, jax.lax.stop_gradient(aware), jax.lax.stop_gradient(independent))
