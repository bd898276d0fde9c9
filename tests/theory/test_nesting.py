"""Token, response and policy entropy are nested (AEM, section 3.2.1).

Claim: `H_resp(s) = E[sum_l H_l]` over responses, and policy entropy is the sum of `H_resp(s)` over turns and
states, weighted by the probability of a visit. Both sides are finite sums here, so they agree to rounding: a
sum of some hundred terms of size 1 has an error near 1e-14, and 1e-12 leaves room. The scoring pass of the
project works in float32 and is held to 1e-5.

What the identity needs, each broken below: the end token belongs to the span, entropies are summed and not
averaged, they are those of the distribution that was sampled from, and states count as often as visited.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from model import scoring
from rl.credit import aem
from tests.theory import toys

SIZES = [(4, 4), (5, 3)]  # vocabulary, longest response


def response_entropy(probability: np.ndarray) -> float:
    return float(-(probability * np.log(probability)).sum())


def enumerated(seed: int, tree: toys.Tree, *, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The probability of every response, and the entropies of its tokens."""
    logits = toys.random_logits(seed, tree, scale=scale)
    return np.asarray(toys.probability(logits, tree)), np.asarray(toys.token_entropy(logits, tree))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("vocabulary", "length"), SIZES)
def test_response_entropy_is_the_expected_sum_of_token_entropies(
    vocabulary: int, length: int, seed: int
) -> None:
    tree = toys.response_tree(vocabulary=vocabulary, length=length)
    probability, entropy = enumerated(seed, tree)
    assert probability.sum() == pytest.approx(1, abs=1e-12)
    assert probability @ entropy.sum(1) == pytest.approx(response_entropy(probability), abs=1e-12)


def test_not_of_a_single_response() -> None:
    tree = toys.response_tree(vocabulary=4, length=4)
    probability, entropy = enumerated(0, tree)
    assert np.abs(entropy.sum(1) - response_entropy(probability)).max() > 0.5


def test_needs_the_end_token_in_the_span() -> None:
    tree = toys.response_tree(vocabulary=4, length=4)
    probability, entropy = enumerated(0, tree)
    without = np.where(tree.tokens == toys.END, 0, entropy).sum(1)
    assert response_entropy(probability) - probability @ without > 0.1


def test_mean_entropy_times_mean_length_is_another_number() -> None:
    """The proxy is a mean over tokens: it orders responses, but does not add up to response entropy."""
    tree = toys.response_tree(vocabulary=4, length=4)
    probability, entropy = enumerated(0, tree)
    length = tree.mask.sum(1)
    product = (probability @ (entropy.sum(1) / length)) * (probability @ length)
    assert abs(product - response_entropy(probability)) > 0.01


def test_needs_the_temperature_that_was_sampled_at() -> None:
    tree = toys.response_tree(vocabulary=4, length=4)
    logits = toys.random_logits(0, tree)
    probability = np.asarray(toys.probability(logits / 0.4, tree))
    right, wrong = (
        np.asarray(toys.token_entropy(z, tree)).sum(1) @ probability for z in (logits / 0.4, logits)
    )
    assert right == pytest.approx(response_entropy(probability), abs=1e-12)
    assert abs(wrong - right) > 0.1


# several states


def policy_of(tree: toys.Tree, *, states: int) -> tuple[np.ndarray, np.ndarray]:
    """Response probabilities and sums of token entropies, both `[S, R]`: a policy a state, ever sharper."""
    probability, entropy = zip(*(enumerated(10 + state, tree, scale=1.0 + state) for state in range(states)))
    return np.stack(probability), np.stack(entropy).sum(-1)


@pytest.mark.parametrize("deterministic", [False, True])
def test_policy_entropy_is_the_visitation_weighted_sum(deterministic: bool) -> None:
    tree = toys.response_tree(vocabulary=3, length=2)
    policy, tokens = policy_of(tree, states=3)
    process = toys.random_process(
        0, states=3, responses=policy.shape[1], horizon=3, deterministic=deterministic
    )
    state_entropy = np.array([response_entropy(row) for row in policy])
    weighted = float((np.asarray(toys.visitation(process, jnp.asarray(policy))) @ state_entropy).sum())

    total = of_states = of_tokens = of_surprisal = 0.0
    for weight, path in toys.trajectories(process, policy):
        total += weight
        of_states += weight * sum(state_entropy[state] for state, _ in path)
        of_tokens += weight * sum(tokens[at] for at in path)
        of_surprisal -= weight * sum(np.log(policy[at]) for at in path)
    assert total == pytest.approx(1, abs=1e-12)
    for enumerated_entropy in (of_states, of_tokens, of_surprisal):
        assert enumerated_entropy == pytest.approx(weighted, abs=1e-12)


def test_states_do_not_count_alike() -> None:
    tree = toys.response_tree(vocabulary=3, length=2)
    policy, _ = policy_of(tree, states=3)
    process = toys.random_process(0, states=3, responses=policy.shape[1], horizon=3)
    state_entropy = np.array([response_entropy(row) for row in policy])
    weighted = (np.asarray(toys.visitation(process, jnp.asarray(policy))) @ state_entropy).sum()
    assert abs(process.horizon * state_entropy.mean() - weighted) > 0.05


def test_policy_entropy_leaves_out_the_environment_s_own() -> None:
    """A whole trajectory is as uncertain as the policy only where the environment is not."""
    tree = toys.response_tree(vocabulary=3, length=2)
    policy, _ = policy_of(tree, states=3)
    gaps = []
    for deterministic in (True, False):
        process = toys.random_process(
            0, states=3, responses=policy.shape[1], horizon=2, deterministic=deterministic
        )
        process = process._replace(start=np.eye(3)[0])
        whole = sum(-weight * np.log(weight) for weight, _ in toys.trajectories(process, policy))
        state_entropy = np.array([response_entropy(row) for row in policy])
        gaps.append(whole - (np.asarray(toys.visitation(process, jnp.asarray(policy))) @ state_entropy).sum())
    assert gaps[0] == pytest.approx(0, abs=1e-12)
    assert gaps[1] > 0.1


# the project's own pass


def test_scoring_pass_and_response_mean_give_the_nested_numbers() -> None:
    tree = toys.response_tree(vocabulary=4, length=3)
    logits = toys.random_logits(1, tree)
    responses = len(tree.tokens)
    # one-hot activations pick a prefix; the head's row of a token holds its logits
    hidden = jnp.eye(len(tree.child), dtype=jnp.float32)[tree.prefix]
    params = {"embed": {"weight": logits.T.astype(jnp.float32)}}
    mask = jnp.asarray(tree.mask)
    ids = jnp.where(mask, jnp.arange(responses)[:, None], -1)

    @jax.jit
    def scored() -> tuple[Float[Array, "R L"], Float[Array, "R L"], Float[Array, " R"]]:
        tokens = jnp.asarray(tree.tokens)
        logp, entropy = scoring.score_hidden(params, hidden, tokens, mask, temperature=1.0, block=64)
        return logp, entropy, aem.response_mean(entropy, ids, num_responses=responses)

    logp, entropy, mean = scored()
    np.testing.assert_allclose(logp, toys.token_logp(logits, tree), atol=1e-5)
    np.testing.assert_allclose(entropy, toys.token_entropy(logits, tree), atol=1e-5)

    probability = np.asarray(toys.probability(logits, tree))
    summed = np.asarray(mean) * tree.mask.sum(1)
    assert probability @ summed == pytest.approx(response_entropy(probability), abs=1e-5)
