import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import sampling

sample = jax.jit(sampling.sample, static_argnames=("top_k", "top_p"))

PROBABILITIES = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
DRAWS = 20_000


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def frequencies(probabilities=PROBABILITIES, **settings):
    logits = jnp.log(jnp.asarray(probabilities, jnp.float32))
    tokens, logp = sample(jnp.broadcast_to(logits, (DRAWS, len(probabilities))), keys(DRAWS), **settings)
    return np.bincount(tokens, minlength=len(probabilities)), np.asarray(tokens), np.asarray(logp)


def assert_follows(counts, expected):
    """Chi-square with a bound exceeded once in about 10^6 (4 degrees of freedom: 34); 0 where nothing may fall."""
    expected = np.asarray(expected) / np.sum(expected) * counts.sum()
    assert np.all(counts[expected == 0] == 0)
    seen = expected > 0
    assert (((counts - expected) ** 2)[seen] / expected[seen]).sum() < 34


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, PROBABILITIES),
        ({"temperature": 0.5}, PROBABILITIES**2),
        ({"temperature": 1.0, "top_k": 2}, [0.4, 0.3, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.8}, [0.4, 0.3, 0.15, 0, 0]),
        ({"temperature": 1.0, "top_p": 1e-6}, [1, 0, 0, 0, 0]),
        # of the three kept by top-k, 0.4 / 0.85 and 0.3 / 0.85 reach 0.8
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.8}, [0.4, 0.3, 0, 0, 0]),
    ],
)
def test_distribution(settings, expected):
    counts, tokens, logp = frequencies(**settings)
    assert_follows(counts, expected)
    # logp is that of the whole tempered distribution, before top-k and top-p.
    tempered = PROBABILITIES ** (1 / settings["temperature"])
    np.testing.assert_allclose(logp, np.log(tempered / tempered.sum())[tokens], atol=1e-5)


def test_greedy_takes_the_likeliest_with_logp_at_temperature_one():
    counts, _, logp = frequencies(temperature=0.0)
    assert counts[0] == DRAWS
    np.testing.assert_allclose(logp, np.log(0.4), atol=1e-6)


def test_every_token_of_a_large_vocabulary_is_reached():
    counts, *_ = frequencies(np.full(1000, 1 / 1000), temperature=1.0)
    assert counts.sum() == DRAWS and np.count_nonzero(counts) == 1000
    chi_square = ((counts - DRAWS / 1000) ** 2 / (DRAWS / 1000)).sum()
    assert abs(chi_square - 999) < 5 * np.sqrt(2 * 999)


def test_impossible_tokens_are_never_drawn():
    logits = jnp.full((DRAWS, 7), -jnp.inf).at[:, 3].set(0.0)
    tokens, logp = sample(logits, keys(DRAWS), temperature=1.0)
    assert np.all(tokens == 3) and np.all(logp == 0)


def test_a_row_does_not_depend_on_its_neighbours():
    logits = jax.random.normal(jax.random.key(1), (64, 50))
    tokens, logp = sample(logits, keys(64), temperature=1.0)
    order = np.random.default_rng(0).permutation(64)[:9]
    other = sample(logits[order], keys(64)[order], temperature=1.0)
    np.testing.assert_array_equal(other[0], tokens[order])
    np.testing.assert_allclose(other[1], logp[order], atol=1e-6)
    changed, _ = sample(logits.at[1:].set(0.0), keys(64), temperature=1.0)
    assert changed[0] == tokens[0]


def test_temperature_is_traced():
    draw = jax.jit(lambda temperature: sampling.sample(jnp.eye(4, 50) * 9, keys(4), temperature=temperature))
    assert draw(0.0)[0].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(
        draw(9.0)[1], np.log(1 / (49 + np.e)) + (draw(9.0)[0] == np.arange(4)), atol=1e-5
    )
    assert draw._cache_size() == 1
