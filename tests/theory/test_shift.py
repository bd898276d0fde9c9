"""What AEM's coefficient does to entropy drift (AEM, section 4.3, equation 16), by our `modulation`.

Claim: AEM shifts drift by `-sign(A)`: up for failures, down for successes. It is stated for the practical
drift, in which `1 - alpha` stands for the relative surprisal `S - H_resp`: `A * (1 - alpha)` without AEM,
`alpha * A * (1 - alpha)` with it, so the shift is `-A * (alpha - 1)^2`. (The copy of the paper's analysis B
gives the practical drift the opposite sign; here a positive drift means that entropy rises, as in theorem
3.2.2.) In these terms it is an identity, strict where `A != 0` and `alpha != 1`. It holds for any
coefficient, a shuffled one too, so by itself it does not speak for AEM's.

The content is the premise, that `1 - alpha` has the sign of `S - H_resp`: then the true shift,
`(alpha - 1) * A * (S - H_resp)`, has the sign claimed. Shown here to hold
- on average over responses of one state under a constant advantage, if `S` itself is the proxy;
- for each of them, if moreover its `S` lies outside a band below the mean: `alpha` crosses 1 where the
  normalised proxy is `-log(mean exp(-x))`, which is less than `mean x`;
- for each under the entropy proxy, if the guard does not hold alpha at 1, lengths are equal, the band is
  avoided, and the martingale of appendix F.4 is smaller than what is left of `sum_l H_l` without `H_resp`.
And shown to fail where a rare opening leads into certain text, to average to nothing where only the states
of a group differ, to be void where all tokens have one entropy, and to be hardly better than a coin where
the uncertainty of one token says nothing about the next.

Groups are exact: each response appears as often as its probability says, so a group's mean is an expectation.
All is float64: equalities hold to 1e-12, signs are read where numbers exceed 1e-9, alpha itself is compared
to 1e-7 relative because its `eps = 1e-8` shifts it, and finite differences to 1e-9 as in the drift's test.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import aem, assign
from tests.theory import simplex, toys

MARGIN = 1e-9
LN2 = np.log(2)
SIZE = 256  # rows of every table, padding included: one shape to compile
TREE = toys.response_tree(vocabulary=4, length=2, ends=False)
SIXTEENTHS = [(4, 4, 4, 4), (8, 4, 2, 2), (10, 2, 2, 2), (13, 1, 1, 1)]


_modulation = jax.jit(aem.modulation, static_argnames=("reverse", "shuffle"))


def alphas(proxy: np.ndarray, *, reverse: bool = False, shuffle: bool = False) -> np.ndarray:
    """The project's coefficients, all responses in one group; rows of padding hold NaN and are not valid."""
    valid = np.arange(SIZE) < len(proxy)
    padded = np.pad(np.asarray(proxy), (0, SIZE - len(proxy)), constant_values=np.nan)
    group, trajectory = jnp.zeros(SIZE, jnp.int32), jnp.arange(SIZE, dtype=jnp.int32)
    key = jax.random.key(0) if shuffle else None
    alpha = _modulation(
        jnp.asarray(padded), group, trajectory, jnp.asarray(valid), key, reverse=reverse, shuffle=shuffle
    )
    assert alpha.dtype == jnp.float64
    return np.asarray(alpha)[: len(proxy)]


def practical(advantage: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Drift as AEM reads it: `1 - alpha` for `S - H_resp`."""
    return advantage * (1 - alpha)


def true_shift(advantage: np.ndarray, alpha: np.ndarray, relative: np.ndarray) -> np.ndarray:
    """Drift by theorem 3.2.2 with AEM minus without: the advantage is `alpha * A` instead of `A`."""
    return alpha * advantage * relative - advantage * relative


def sign(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) > MARGIN, np.sign(values), 0)


def random_advantage(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=rows)


def exact_group(weights: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(surprisal, relative surprisal) of rows that hold response `a` of the policy `weights[a]` times."""
    probability = np.asarray(weights) / np.sum(weights)
    surprisal = -np.log(probability)
    return np.repeat(surprisal, weights), np.repeat(surprisal - probability @ surprisal, weights)


# equation 16 in the proxy's terms


@pytest.mark.parametrize("seed", range(3))
def test_practical_shift_has_the_sign_opposite_to_the_advantage(seed: int) -> None:
    alpha = alphas(np.random.default_rng(seed).gamma(2.0, 0.3, 64))
    advantage = random_advantage(seed, 64)
    shift = practical(alpha * advantage, alpha) - practical(advantage, alpha)
    np.testing.assert_allclose(shift, -advantage * (alpha - 1) ** 2, atol=1e-12)
    moved = np.abs(alpha - 1) > 1e-3
    assert moved.mean() > 0.9
    assert (sign(shift) == -sign(advantage))[moved].all()


def test_no_shift_without_a_range_or_without_an_advantage() -> None:
    silent, loud = alphas(np.array([1.0, 1.02, 1.04])), alphas(np.array([1.0, 1.5, 2.0]))
    assert (silent == 1).all()
    assert (practical(loud * 0.0, loud) == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_sign_mask_splits_responses_by_practical_drift(seed: int) -> None:
    alpha, advantage = alphas(np.random.default_rng(seed).gamma(2.0, 0.3, 64)), random_advantage(seed, 64)
    for kind, way in (("rising", 1), ("falling", -1)):
        mask = assign.sign_mask(jnp.asarray(advantage), jnp.asarray(alpha), kind=kind)
        np.testing.assert_array_equal(mask, sign(practical(advantage, alpha)) == way)


def test_it_holds_for_any_coefficient_that_reads_itself() -> None:
    """So it cannot tell AEM from its ablations. Read by AEM's alpha, a shuffled or reversed one breaks it."""
    proxy, advantage = np.random.default_rng(0).gamma(2.0, 0.3, 64), random_advantage(0, 64)
    alpha, backwards = alphas(proxy), alphas(proxy, reverse=True)
    for other in (alphas(proxy, shuffle=True), backwards):
        itself = practical(other * advantage, other) - practical(advantage, other)
        np.testing.assert_allclose(itself, -advantage * (other - 1) ** 2, atol=1e-12)
        read_by_aem = practical(other * advantage, alpha) - practical(advantage, alpha)
        assert (sign(read_by_aem) == sign(advantage)).mean() > 0.3
    # reversed, every response is shifted the wrong way, but for those between the two crossings of 1
    opposite = (alpha - 1) * (backwards - 1) < 0
    shift = practical(backwards * advantage, alpha) - practical(advantage, alpha)
    np.testing.assert_array_equal(sign(shift) == sign(advantage), opposite)
    assert opposite.mean() > 0.5


# the true shift, with surprisal itself as the proxy


def test_numbers() -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8: `S` is 1, 2, 3, 3 and `H` 1.75 in units of ln 2."""
    surprisal, relative = exact_group([4, 2, 1, 1])
    alpha = alphas(surprisal)
    np.testing.assert_allclose(relative[[0, 4, 6]], LN2 * np.array([-0.75, 0.25, 1.25]), atol=1e-12)
    raw = np.exp([0, -0.5, -1])
    np.testing.assert_allclose(alpha[[0, 4, 6]], raw / (raw @ [0.5, 0.25, 0.25]), rtol=1e-7)
    assert_drift_measured(np.array([4, 2, 1, 1]) / 8, alpha[[0, 4, 6, 7]], relative[[0, 4, 6, 7]])
    for advantage in (-np.ones(8), np.ones(8)):
        assert (sign(true_shift(advantage, alpha, relative)) == -sign(advantage)).all()


def assert_drift_measured(policy: np.ndarray, alpha: np.ndarray, relative: np.ndarray) -> None:
    """Slopes of entropy along both natural-gradient flows, AEM's and the base's, differ by the true shift."""
    _, base = simplex.measured(simplex.sampled, jnp.asarray(policy), -1.0)
    modulated = [
        simplex.measured(simplex.sampled, jnp.asarray(policy), -float(a))[1][response]
        for response, a in enumerate(alpha)
    ]
    shift = true_shift(-np.ones(len(alpha)), alpha, relative)
    np.testing.assert_allclose(np.asarray(modulated) - base, shift, rtol=0, atol=1e-9)


def crossing(proxy: np.ndarray) -> tuple[np.ndarray, float, float]:
    """(normalised proxy, where alpha crosses 1, its mean)."""
    normalised = (proxy - proxy.min()) / np.ptp(proxy)
    return normalised, float(-np.log(np.exp(-normalised).mean())), float(normalised.mean())


def skewed_weights(seed: int) -> np.ndarray:
    """Six responses in 128 rows, each there at least once."""
    random = np.random.default_rng(seed)
    return random.multinomial(122, random.dirichlet(np.ones(6))) + 1


def test_each_response_agrees_outside_a_band_below_the_mean() -> None:
    inside = 0
    for seed in range(40):
        surprisal, relative = exact_group(skewed_weights(seed))
        alpha, advantage = alphas(surprisal), random_advantage(seed, len(surprisal))
        normalised, low, mean = crossing(surprisal)
        assert low < mean
        agrees = sign(true_shift(advantage, alpha, relative)) == -sign(advantage)
        band = (low < normalised) & (normalised < mean)
        np.testing.assert_array_equal(agrees, ~band)
        inside += band.sum()
    assert inside > 0  # the band is not empty: alpha < 1 for some responses that are likelier than average


def test_on_average_it_agrees_without_conditions() -> None:
    """Alpha falls as `S` rises, so `Cov(alpha, S) < 0`: a constant advantage shifts against its sign."""
    for seed in range(40):
        surprisal, relative = exact_group(skewed_weights(seed))
        ones = np.ones(len(surprisal))
        assert true_shift(-ones, alphas(surprisal), relative).mean() > MARGIN
        assert true_shift(ones, alphas(surprisal), relative).mean() < -MARGIN
        assert true_shift(-ones, alphas(surprisal, reverse=True), relative).mean() < -MARGIN


# the true shift, with the entropy proxy


class Rollouts:
    """An exact group of all responses of two tokens of a policy whose probabilities are sixteenths."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        prefixes = len(TREE.child)
        rows = [random.permutation(SIXTEENTHS[random.integers(4)]) for _ in range(prefixes)]
        counts = np.stack(rows)
        logits = jnp.log(jnp.asarray(counts / 16))
        repeats = counts[TREE.prefix, TREE.tokens].prod(1)  # of 16^2 rows
        probability = np.asarray(toys.probability(logits, TREE))
        np.testing.assert_allclose(repeats / 256, probability, atol=1e-12)
        entropy = np.asarray(toys.token_entropy(logits, TREE))
        surprisal = -np.asarray(toys.token_logp(logits, TREE)).sum(1)
        response_entropy = float(probability @ surprisal)
        self.proxy = np.repeat(entropy.mean(1), repeats)
        self.predictable = np.repeat(entropy.sum(1), repeats) - response_entropy
        self.relative = np.repeat(surprisal, repeats) - response_entropy
        self.martingale = self.relative - self.predictable


def test_each_response_agrees_where_the_martingale_is_small() -> None:
    sure_rows = wrong_rows = right_rows = 0
    for seed in range(40):
        group = Rollouts(seed)
        if np.ptp(group.proxy) < 0.1:  # the guard: alpha is 1
            continue
        alpha, advantage = alphas(group.proxy), random_advantage(seed, 256)
        normalised, low, mean = crossing(group.proxy)
        band = (low - 1e-6 < normalised) & (normalised < mean + 1e-6)
        sure = ~band & (np.abs(group.martingale) < np.abs(group.predictable) - MARGIN)
        agrees = sign(true_shift(advantage, alpha, group.relative)) == -sign(advantage)
        assert agrees[sure].all()
        sure_rows, wrong_rows = sure_rows + sure.sum(), wrong_rows + (~agrees).sum()
        right_rows += agrees.sum()
    assert sure_rows > 500 and wrong_rows > 500  # the condition is met often, and is needed often
    # where uncertainty of one token says nothing about the next the proxy is hardly better than a coin
    assert 0.45 < right_rows / (right_rows + wrong_rows) < 0.6


_response_mean = jax.jit(aem.response_mean, static_argnames="num_responses")


def response_means(tokens: Sequence[Sequence[float]]) -> np.ndarray:
    """The project's proxy of responses of at most 3 tokens, from their token entropies."""
    entropy, ids = np.full((8, 3), np.nan), np.full((8, 3), -1)
    for row, values in enumerate(tokens):
        entropy[row, : len(values)], ids[row, : len(values)] = values, row
    means = _response_mean(jnp.asarray(entropy), jnp.asarray(ids, jnp.int32), num_responses=8)
    return np.asarray(means)[: len(tokens)]


def two_openings(opening: Sequence[int], following: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(proxy, relative surprisal) of an exact group of two-token responses.

    `opening` are the first token's probabilities and `following` those of the second after each, in eighths.
    """
    first = np.asarray(opening) / 8
    second = [np.asarray(row) / 8 for row in following]
    surprisal, tokens, repeats = [], [], []
    for p, row in zip(first, second):
        for q in row[row > 0]:
            surprisal.append(-np.log(p * q))
            tokens.append([nats(first), nats(row)])
            repeats.append(round(64 * p * q))
    relative = np.asarray(surprisal) - np.asarray(repeats) @ surprisal / 64
    return np.repeat(response_means(tokens), repeats), np.repeat(relative, repeats)


def nats(probability: np.ndarray) -> float:
    positive = probability[probability > 0]
    return float(-(positive * np.log(positive)).sum())


def test_it_holds_where_the_opening_tells_certain_text_from_open_text() -> None:
    proxy, relative = two_openings([4, 4], [[8], [2, 2, 2, 2]])
    alpha = alphas(proxy)
    for advantage in (-np.ones(64), np.ones(64)):
        assert (sign(true_shift(advantage, alpha, relative)) == -sign(advantage)).all()
        shuffled = true_shift(advantage, alphas(proxy, shuffle=True), relative)
        assert (sign(shuffled) == sign(advantage)).any()
        reverse = true_shift(advantage, alphas(proxy, reverse=True), relative)
        assert (sign(reverse) == sign(advantage)).all()


def test_it_fails_for_every_response_where_a_rare_opening_leads_into_certain_text() -> None:
    """An opening of 1/8 and then certainty (`S` = 2.08), else four even ways (1.52); `H_resp` is 1.59.

    The rare response is the more surprising and has the lower entropies: AEM takes it for a confident one.
    """
    proxy, relative = two_openings([1, 7], [[8], [2, 2, 2, 2]])
    alpha, failure = alphas(proxy), -np.ones(64)
    np.testing.assert_allclose(relative[[0, -1]], [0.489664, -0.069952], atol=1e-6)
    assert alpha[0] > 1 > alpha[-1]
    assert (sign(true_shift(failure, alpha, relative)) == sign(failure)).all()
    claimed = practical(alpha * failure, alpha) - practical(failure, alpha)
    assert (sign(claimed) == -sign(failure)).all()  # equation 16 does not notice


def test_it_averages_to_nothing_where_only_states_differ() -> None:
    """Responses of one token: the proxy is `H(s)`, it knows the state only, and `S - H` has mean 0 in each.

    A group of AEM holds all turns of a task, so this part of alpha's variation is always there.
    """
    states = [exact_group([4, 2, 1, 1]), exact_group([6, 1, 1])]
    proxy = np.concatenate([np.full(8, surprisal.mean()) for surprisal, _ in states])
    relative = np.concatenate([relative for _, relative in states])
    alpha, failure = alphas(proxy), -np.ones(16)
    assert np.ptp(alpha) > 0.5
    shift = true_shift(failure, alpha, relative).reshape(2, 8)
    np.testing.assert_allclose(shift.mean(1), 0, atol=1e-12)
    assert np.abs(shift).max() > 0.1
    claimed = practical(alpha * failure, alpha) - practical(failure, alpha)
    assert claimed.mean() > 0.05


def test_it_is_void_where_all_tokens_have_one_entropy() -> None:
    """The same coin at every token, up to three: lengths and surprisals differ, means per token do not."""
    coin = nats(np.array([3, 1]) / 4)
    proxy = response_means(
        [[coin], [coin] * 2, [coin] * 3, [coin] * 3]
    )  # end; on, end; on, on, end; on, on, on
    surprisal = -np.log([3 / 4, 3 / 16, 3 / 64, 1 / 64])
    assert (alphas(np.repeat(proxy, [48, 12, 3, 1])) == 1).all()
    assert np.ptp(surprisal) > 3
