"""Per-token estimates of KL[pi || pi_ref] from the sampled token (Schulman 2020, Approximating KL).

`d = logp_ref - logp`. As a loss their gradients differ: that of k1 is zero in expectation on policy, that of
k2 is the gradient of the KL itself, that of k3 is low in variance and unbiased as a value only.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def k1(difference: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns `-d`: unbiased, of either sign."""
    return -difference


def k2(difference: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns `d^2 / 2`: biased, never negative."""
    return jnp.square(difference) / 2


def k3(difference: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns `exp(d) - d - 1`: unbiased, never negative."""
    return jnp.expm1(difference) - difference


KINDS: dict[str, Callable[[Array], Array]] = {"k1": k1, "k2": k2, "k3": k3}


def kl(
    logp: Float[Array, "B T"],
    logp_ref: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    kind: str,
    input_clamp: float = 20.0,
    output_clamp: float = 0.0,
) -> Float[Array, "B T"]:
    """Returns the estimate for every token, 0 outside the mask.

    `d` is clamped to +-`input_clamp` before it is used (else exp overflows) and the estimate to
    +-`output_clamp` after; 0 switches a clamp off. A clamped token has gradient 0.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown KL {kind=}; known: {', '.join(KINDS)}")
    difference = jnp.where(mask, logp_ref, 0) - jnp.where(mask, logp, 0)
    if input_clamp > 0:
        difference = jnp.clip(difference, -input_clamp, input_clamp)
    estimate = KINDS[kind](difference)
    if output_clamp > 0:
        estimate = jnp.clip(estimate, -output_clamp, output_clamp)
    return jnp.where(mask, estimate, 0)
