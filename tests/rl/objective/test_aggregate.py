"""Weights of tokens: numbers per name, global denominators, masks, no tokens at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.objective import aggregate

# response 0 has 1 token, response 1 has 3, response 2 is not valid, response 3 is not in these rows
RESPONSE_ID = jnp.array([[-1, 0, -1, -1], [1, 1, 1, -1], [2, 2, -1, 7]])
VALID = jnp.array([True, True, False, True])
NUMBERS = {
    "token_mean": (1 / 4, 1 / 4),
    "seq_mean_token_mean": (1 / 2, 1 / 6),
    "seq_mean_token_sum": (1 / 2, 1 / 2),
    "seq_mean_token_sum_norm": (1 / 20, 1 / 20),
}


def test_denominators():
    counts = aggregate.denominators(RESPONSE_ID, VALID)
    assert counts.tokens == 4
    assert counts.responses == 2
    np.testing.assert_array_equal(counts.lengths, [1, 3, 0, 0])


def test_denominators_of_micro_batches_add():
    whole = aggregate.denominators(RESPONSE_ID, VALID)
    parts = aggregate.add(*(aggregate.denominators(RESPONSE_ID[i : i + 1], VALID) for i in range(3)))
    jax.tree.map(np.testing.assert_array_equal, parts, whole)


@pytest.mark.parametrize("name", aggregate.AGGREGATIONS)
def test_weights(name):
    counts = aggregate.denominators(RESPONSE_ID, VALID)
    weight = aggregate.weights(RESPONSE_ID, VALID, counts, aggregation=name, constant_length=10.0)
    short, long = NUMBERS[name]
    expected = np.array([[0, short, 0, 0], [long, long, long, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(weight, expected, rtol=1e-6)


@pytest.mark.parametrize("name", aggregate.AGGREGATIONS)
def test_aggregated_losses_are_what_the_names_say(name):
    loss = np.array([[0, 4.0, 0, 0], [1.0, 2.0, 6.0, 0], [50.0, 50.0, 0, 0]])
    expected = {
        "token_mean": (4 + 1 + 2 + 6) / 4,
        "seq_mean_token_mean": (4 + (1 + 2 + 6) / 3) / 2,
        "seq_mean_token_sum": (4 + 9) / 2,
        "seq_mean_token_sum_norm": (4 / 10 + 9 / 10) / 2,
    }[name]
    counts = aggregate.denominators(RESPONSE_ID, VALID)
    weight = aggregate.weights(RESPONSE_ID, VALID, counts, aggregation=name, constant_length=10.0)
    np.testing.assert_allclose(np.sum(weight * loss), expected, rtol=1e-6)


@pytest.mark.parametrize("name", aggregate.AGGREGATIONS)
def test_nothing_valid_weighs_nothing(name):
    none = jnp.zeros(4, bool)
    counts = aggregate.denominators(RESPONSE_ID, none)
    weight = aggregate.weights(RESPONSE_ID, none, counts, aggregation=name)
    np.testing.assert_array_equal(weight, 0)


def test_unknown_name_lists_the_known_ones():
    counts = aggregate.denominators(RESPONSE_ID, VALID)
    with pytest.raises(
        ValueError, match="unknown aggregation='mean'; known: token_mean, seq_mean_token_mean"
    ):
        aggregate.weights(RESPONSE_ID, VALID, counts, aggregation="mean")


def test_tokens_share_their_responses_value_and_others_get_0():
    values = jnp.array([1.5, jnp.nan, 7.0])
    response_id = jnp.array([[-1, 0, 0, -1, 2], [0, -1, -1, 1, 2]])
    mask = (response_id >= 0) & (response_id != 1)
    expected = [[0, 1.5, 1.5, 0, 7], [1.5, 0, 0, 0, 7]]
    np.testing.assert_array_equal(aggregate.to_tokens(values, response_id, mask), expected)
