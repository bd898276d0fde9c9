import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import scoring
from tests.model import reference
from tests.model.test_decoder import CONFIG, parameters, rows


def test_against_float64():
    tree, first, second = parameters(CONFIG), [3, 1, 4, 1, 5], [9, 2, 6]
    tokens, positions, segments = rows(first, second, length=10)
    mask = jnp.array([[True, True, False, True, True, True, False, True, True, True]])
    logp, entropy = scoring.score(
        tree, tokens, positions, segments, mask, config=CONFIG, temperature=0.7, block=3
    )
    want_logp, want_entropy = np.zeros(10), np.zeros(10)
    for document, start in ((first, 0), (second, 5)):
        span = slice(start + 1, start + len(document))
        z = reference.logits(tree, document, CONFIG)
        want_logp[span], want_entropy[span] = reference.logp_entropy(z, document, 0.7)
    # The first token of a segment has no predecessor in it, whatever the mask says.
    want_logp[2] = want_logp[6] = want_entropy[2] = want_entropy[6] = 0
    np.testing.assert_allclose(logp[0], want_logp, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(entropy[0], want_entropy, rtol=1e-5, atol=1e-4)


def numbers(mask=True, temperature=1.0):
    """logits (0, ln 3) for one scored token: probabilities 1/4 and 3/4."""
    tree = {"embed": {"weight": jnp.array([[0.0], [np.log(3.0)]])}}
    return scoring.score_hidden(
        tree, jnp.ones((1, 1, 1)), jnp.array([[1]]), jnp.array([[mask]]), temperature=temperature, block=1
    )


def test_numbers():
    logp, entropy = numbers()
    assert float(logp[0, 0]) == pytest.approx(-0.2876821, abs=1e-6)
    assert float(entropy[0, 0]) == pytest.approx(0.5623351, abs=1e-6)
    logp, entropy = numbers(temperature=0.5)  # (0, ln 9): 1/10 and 9/10
    assert float(logp[0, 0]) == pytest.approx(-0.1053605, abs=1e-6)
    assert float(entropy[0, 0]) == pytest.approx(0.3250830, abs=1e-6)
    assert [float(x[0, 0]) for x in numbers(mask=False)] == [0, 0]


def head_only(hidden, weight, targets, mask, block=4):
    score = jax.jit(scoring.score_hidden, static_argnames=("temperature", "block"))
    return score({"embed": {"weight": weight}}, hidden, targets, mask, temperature=0.8, block=block)


def test_gradients_against_naive_and_finite_differences():
    rng = np.random.default_rng(0)
    hidden, weight = (
        jnp.asarray(rng.normal(size=(2, 5, 4)), jnp.float32),
        jnp.asarray(rng.normal(size=(7, 4)), jnp.float32),
    )
    targets, mask = jnp.asarray(rng.integers(0, 7, (2, 5))), jnp.asarray(rng.random((2, 5)) < 0.7)
    mix = jnp.asarray(rng.normal(size=(2, 2, 5)), jnp.float32)

    def loss(hidden, weight):
        logp, entropy = head_only(hidden, weight, targets, mask)
        return (mix[0] * logp + mix[1] * entropy).sum()

    def naive(hidden, weight):
        """Float64 numpy."""
        z = np.asarray(hidden, np.float64) @ np.asarray(weight, np.float64).T / 0.8
        p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
        logp = np.log(np.take_along_axis(p, np.asarray(targets)[..., None], -1))[..., 0]
        total = np.asarray(mix[0]) * logp - np.asarray(mix[1]) * (p * np.log(p)).sum(-1)
        return (total * np.asarray(mask)).sum()

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(hidden, weight)
    assert float(value) == pytest.approx(naive(hidden, weight), abs=1e-5)
    arrays = [np.asarray(hidden, np.float64), np.asarray(weight, np.float64)]
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(arrays[which].shape):
            moved = [a.copy() for a in arrays], [a.copy() for a in arrays]
            moved[0][which][index] += 1e-5
            moved[1][which][index] -= 1e-5
            slope = (naive(*moved[0]) - naive(*moved[1])) / 2e-5
            assert float(gradient[index]) == pytest.approx(slope, abs=1e-4)


def test_masked_nan_does_not_leak_into_the_gradient():
    hidden = jnp.ones((1, 3, 4)).at[0, 1].set(jnp.nan)
    mask, targets = jnp.array([[True, False, True]]), jnp.array([[0, 99, 1]])

    def loss(hidden, weight):
        return sum(x.sum() for x in head_only(hidden, weight, targets, mask))

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(hidden, jnp.eye(7, 4))
    assert np.isfinite(value) and all(np.isfinite(x).all() for x in gradients)


def test_extreme_logits_are_finite():
    # A distribution that is certain to float32's last bit: entropy 0, no NaN in value or gradient.
    weight = jnp.zeros((3, 1)).at[1].set(1e4)

    def both(weight):
        return [
            x[0, 0] for x in head_only(jnp.ones((1, 1, 1)), weight, jnp.array([[1]]), jnp.array([[True]]))
        ]

    assert [float(x) for x in both(weight)] == [0, 0]
    gradient = jax.grad(lambda weight: sum(both(weight)))(weight)
    assert np.isfinite(gradient).all()


def test_blocks_change_nothing():
    rng = np.random.default_rng(1)
    hidden, weight = (
        jnp.asarray(rng.normal(size=(3, 7, 4)), jnp.float32),
        jnp.asarray(rng.normal(size=(9, 4)), jnp.float32),
    )
    targets, mask = jnp.asarray(rng.integers(0, 9, (3, 7))), jnp.ones((3, 7), bool)
    want = head_only(hidden, weight, targets, mask, block=10_000)
    for block in (1, 11):
        got = head_only(hidden, weight, targets, mask, block=block)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, want)


def largest(jaxpr):
    """Elements of the largest array a program makes, inner programs included."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [int(np.prod(v.aval.shape)) for v in equation.outvars if hasattr(v.aval, "shape")]
        for value in equation.params.values():
            for inner in value if isinstance(value, (list, tuple)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                sizes.append(largest(inner) if hasattr(inner, "eqns") else 0)
    return max(sizes)


def test_no_array_of_tokens_by_vocabulary_exists():
    config = dataclasses.replace(CONFIG, vocab_size=4096)
    B, T, block = 2, 64, 16
    shape = jax.ShapeDtypeStruct((B, T), jnp.int32)
    tree = jax.eval_shape(lambda: parameters(config))

    def forward(tree, tokens, positions, segments):
        mask = segments > 0
        return scoring.score(
            tree, tokens, positions, segments, mask, config=config, temperature=1.0, block=block
        )

    def backward(tree, *row):
        return jax.grad(lambda tree: sum(x.sum() for x in forward(tree, *row)))(tree)

    for function in (forward, backward):
        assert largest(jax.make_jaxpr(function)(tree, shape, shape, shape).jaxpr) <= block * config.vocab_size
    # What the compiler plans for agrees: less than the logits of all tokens, the head's gradient included.
    compiled = jax.jit(backward).lower(tree, shape, shape, shape).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < B * T * config.vocab_size * 4
