"""Surprisal is the sum of token entropies plus a martingale (AEM, appendix F.4).

Claim: `S = sum_l H_l + M`, with increments `-log p(y_l) - H_l` whose mean given the prefix is 0, so `M` has
mean 0 at any length and the sum of entropies is the predictable part. Enumerated means are finite sums and 0
to rounding (1e-12). Over samples, drawn by the project's own sampler, the mean must lie within 4 standard
errors of 0: the seed is fixed, and a right sampler fails at 1 seed in 16,000.

What mean 0 needs, each broken below: entropies of the distribution that was sampled from, responses not
chosen by their length, and sums. It says nothing of correlation: the two parts are not orthogonal.
"""

import jax
import numpy as np
import pytest
from jaxtyping import Array, Float

from model import sampling
from tests.theory import toys

TREE = toys.response_tree(vocabulary=4, length=4)


def decomposed(
    seed: int, *, scored_at: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Float[Array, "P V"]]:
    """(probability [R], entropies [R, L], increments [R, L], logits); entropies of `logits / scored_at`."""
    logits = toys.random_logits(seed, TREE)
    entropy = np.asarray(toys.token_entropy(logits / scored_at, TREE))
    increments = -np.asarray(toys.token_logp(logits, TREE)) - entropy
    return np.asarray(toys.probability(logits, TREE)), entropy, increments, logits


@pytest.mark.parametrize("seed", range(3))
def test_surprisal_is_entropies_plus_a_martingale_of_mean_zero(seed: int) -> None:
    probability, entropy, increments, _ = decomposed(seed)
    martingale = increments.sum(1)
    np.testing.assert_allclose(-np.log(probability), entropy.sum(1) + martingale, atol=1e-12)
    assert probability @ martingale == pytest.approx(0, abs=1e-12)
    assert probability @ martingale**2 > 0.1  # it is not small, only fair


@pytest.mark.parametrize("seed", range(3))
def test_increments_have_mean_zero_given_the_prefix(seed: int) -> None:
    probability, _, increments, _ = decomposed(seed)
    for prefix in range(len(TREE.child)):
        here = TREE.mask & (TREE.prefix == prefix)
        weight = (probability[:, None] * here).sum()
        assert (probability[:, None] * increments * here).sum() / weight == pytest.approx(0, abs=1e-12)


def test_stopped_at_any_length_the_mean_is_zero() -> None:
    probability, _, increments, _ = decomposed(0)
    np.testing.assert_allclose(probability @ np.cumsum(increments, axis=1), 0, atol=1e-12)


def test_variance_is_the_sum_over_tokens() -> None:
    """Increments of a martingale are uncorrelated, whatever the context does to them."""
    probability, _, increments, _ = decomposed(0)
    products = np.einsum("r,rl,rk->lk", probability, increments, increments)
    np.testing.assert_allclose(products - np.diag(np.diag(products)), 0, atol=1e-12)
    assert probability @ increments.sum(1) ** 2 == pytest.approx(np.trace(products), abs=1e-12)


def test_entropy_is_predictable_and_surprisal_is_not() -> None:
    """Given the prefix `H_l` is one number for every token that may follow; the increment is not."""
    _, entropy, increments, _ = decomposed(0)
    root = TREE.prefix[:, 0] == 0
    assert np.ptp(entropy[root, 0]) == 0
    assert np.ptp(increments[root, 0]) > 0.5


# over samples


def rollouts(logits: Float[Array, "P V"], *, number: int, temperature: float = 1.0) -> tuple[np.ndarray, ...]:
    """(surprisal, sum of entropies) of responses drawn token by token with the project's sampler."""
    logp = np.asarray(jax.nn.log_softmax(logits / temperature))
    entropy = -(np.exp(logp) * logp).sum(-1)
    prefix, alive = np.zeros(number, int), np.ones(number, bool)
    surprisal, summed = np.zeros((2, number))
    draw = jax.jit(sampling.sample, static_argnames="temperature")
    for position in range(TREE.tokens.shape[1]):
        keys = jax.random.split(jax.random.key(position), number)
        tokens, _ = draw(logits[prefix], keys, temperature=temperature)
        tokens = np.asarray(tokens)
        surprisal -= np.where(alive, logp[prefix, tokens], 0)
        summed += np.where(alive, entropy[prefix], 0)
        following = TREE.child[prefix, tokens]
        alive &= following >= 0
        prefix = np.where(alive, following, 0)
    return surprisal, summed


def errors_from_zero(values: np.ndarray) -> float:
    """The mean in units of its standard error."""
    return float(abs(values.mean()) / (values.std(ddof=1) / np.sqrt(len(values))))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_mean_over_samples(temperature: float) -> None:
    logits = toys.random_logits(0, TREE)
    surprisal, summed = rollouts(logits, number=20_000, temperature=temperature)
    assert errors_from_zero(surprisal - summed) < 4
    probability = np.asarray(toys.probability(logits / temperature, TREE))
    exact = float(-(probability * np.log(probability)).sum())
    assert errors_from_zero(summed - exact) < 4  # so the sum of entropies is unbiased for H_resp
    assert errors_from_zero(summed - 0.98 * exact) > 4  # and the test would see 2 % of bias


def test_noise_leaves_out() -> None:
    """The sum of entropies estimates `H_resp` as surprisal does, here with less variance."""
    surprisal, summed = rollouts(toys.random_logits(0, TREE), number=20_000)
    assert summed.std() < surprisal.std()


# what breaks it


def test_entropies_of_another_temperature_are_biased() -> None:
    probability, _, increments, _ = decomposed(0, scored_at=0.4)
    assert abs(probability @ increments.sum(1)) > 0.1


def test_among_responses_of_one_length_the_mean_is_not_zero() -> None:
    probability, _, increments, _ = decomposed(0)
    short = TREE.mask.sum(1) == 1
    assert abs(probability[short] @ increments.sum(1)[short]) / probability[short].sum() > 0.1


def test_the_mean_per_token_is_biased() -> None:
    """`sum_l H_l / |a|`, the proxy, is not the predictable part of `S / |a|`: the length knows the tokens."""
    probability, _, increments, _ = decomposed(0)
    per_token = increments.sum(1) / TREE.mask.sum(1)
    assert abs(probability @ per_token) > 0.01


def test_the_parts_are_correlated() -> None:
    """A surprising token can lead into certain text: surprisal up, entropy down, and the proxy misled."""
    covariances = []
    for seed in range(8):
        probability, entropy, increments, _ = decomposed(seed)
        summed = entropy.sum(1)
        covariances.append(probability @ ((summed - probability @ summed) * increments.sum(1)))
    assert min(covariances) < -0.02
    assert max(np.abs(covariances)) > 0.05
