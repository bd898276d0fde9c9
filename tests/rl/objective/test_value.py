"""The value loss: numbers, a float64 reference, gradients also at the clip, masks, and its term in the objective."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.objective import aggregate, objective, value

SETTINGS = objective.ObjectiveSettings(
    surrogate="token",
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=0.0,
    ratio_clamp=20.0,
    kl_coef=0.0,
    kl_kind="k3",
    kl_input_clamp=20.0,
    kl_output_clamp=0.0,
    entropy_coef=0.0,
    aggregation="token_mean",
    constant_length=1.0,
    importance_cap=0.0,
    value_coef=0.5,
    value_clip=0.2,
)


def loss(said, old, target, clip=0.2, mask=None):
    said, old, target = (jnp.asarray(x, jnp.float32) for x in (said, old, target))
    mask = jnp.ones(said.shape, bool) if mask is None else jnp.asarray(mask)
    return value.value_loss(said, old, target, mask, clip=clip)


def slope(said, old, target, clip=0.2, mask=None):
    return jax.grad(lambda x: jnp.sum(loss(x, old, target, clip, mask)))(jnp.asarray(said, jnp.float32))


# where a response begins


def test_starts_are_first_tokens_of_trained_responses():
    # touching responses, one that begins a row, ids that go on in the next row, one that is not trained
    response_id = jnp.array([[-1, 0, 0, -1, 1, 1, 2, 2], [3, 3, -1, -1, 4, 4, 4, 5]])
    trained = (response_id >= 0) & (response_id != 1)
    np.testing.assert_array_equal(
        value.starts(response_id, trained),
        np.array([[0, 1, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0, 0, 1]], bool),
    )
    assert not value.starts(response_id, jnp.zeros_like(trained)).any()


# numbers


def test_numbers():
    # V 1, V_old 0.5: held at 0.7. Target 3: 2^2 / 2 against 2.3^2 / 2, the held one is worse
    np.testing.assert_allclose(loss([1.0], [0.5], [3.0]), [2.645], rtol=1e-6)
    # target 0: 1 / 2 against 0.49 / 2
    np.testing.assert_allclose(loss([1.0], [0.5], [0.0]), [0.5], rtol=1e-6)
    # inside the clip both are the same, and without one only the plain square is left
    np.testing.assert_allclose(loss([0.6], [0.5], [3.0]), [2.88], rtol=1e-6)
    np.testing.assert_allclose(loss([1.0], [0.5], [3.0], clip=0.0), [2.0], rtol=1e-6)
    # below: held at 0.3, (0.3 + 1)^2 / 2 against 1 / 2
    np.testing.assert_allclose(loss([0.0], [0.5], [-1.0]), [0.845], rtol=1e-6)


def test_against_float64_loops():
    random = np.random.default_rng(0)
    said, old, target = random.normal(size=(3, 40)).astype(np.float32)
    for clip in (0.0, 0.3, 5.0):
        expected = []
        for v, v_old, r in zip(*(x.astype(np.float64) for x in (said, old, target)), strict=True):
            held = min(max(v, v_old - clip), v_old + clip) if clip else v
            expected.append(max((v - r) ** 2, (held - r) ** 2) / 2)
        np.testing.assert_allclose(loss(said, old, target, clip), expected, rtol=1e-5, atol=1e-6)


# gradients


def test_gradient_is_the_error_or_0_where_the_held_value_is_worse():
    # inside; outside towards the target (held); outside away from it; on it
    gradient = slope([0.6, 1.0, 1.0, 0.5], [0.5] * 4, [3.0, 3.0, 0.0, 0.5])
    np.testing.assert_allclose(gradient, [-2.4, 0, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(slope([0.6, 1.0, 1.0], [0.5] * 3, [3.0, 3.0, 0.0], clip=0.0), [-2.4, -2, 1])


def test_gradient_at_the_clip_is_whole_and_finite():
    # exactly representable: 0.5 + 0.25; both squares are equal there, and the plain one is taken, not half of each
    for said, target in ((0.75, 3.0), (0.75, 0.0), (0.25, 3.0), (0.25, 0.0), (0.5, 0.5)):
        np.testing.assert_array_equal(slope([said], [0.5], [target], clip=0.25), [said - target])


def test_gradient_by_finite_differences():
    random = np.random.default_rng(1)
    with jax.enable_x64():
        said, old, target = (jnp.asarray(x) for x in random.normal(size=(3, 30)))

        def total(said):
            return jnp.sum(value.value_loss(said, old, target, jnp.ones(30, bool), clip=0.3))

        exact = jax.grad(total)(said)
        steps = 1e-6 * jnp.eye(30)
        numeric = jax.vmap(lambda d: (total(said + d) - total(said - d)) / 2e-6)(steps)
    np.testing.assert_allclose(exact, numeric, atol=1e-8)
    assert (np.asarray(exact) == 0).any() and (np.asarray(exact) != 0).any()


def test_no_gradient_reaches_the_old_value_or_the_target():
    both = jax.grad(lambda old, target: jnp.sum(loss([1.0, 1.0], old, target)), argnums=(0, 1))
    for gradient in both(jnp.array([0.5, 0.9]), jnp.array([0.0, 3.0])):
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_nan_outside_the_mask_reaches_neither_value_nor_gradient(clip):
    rows = [np.nan, 1.0, 5.0], [0.5, 0.5, np.inf], [3.0, 0.0, np.nan]
    mask = [False, True, False]
    np.testing.assert_allclose(loss(*rows, clip, mask), [0, 0.5, 0])
    np.testing.assert_allclose(slope(*rows, clip, mask), [0, 1, 0])


# in the objective

IDS = np.array([[-1, 0, 0, -1, 1], [2, 2, 2, -1, -1], [-1, 3, -1, -1, -1]])
VALID = np.array([True, True, True, False])


def data() -> dict[str, Any]:
    """Three responses that are trained on, one that is not; NaN wherever nothing may be read."""
    random = np.random.default_rng(2)
    mask = (IDS >= 0) & VALID[IDS]
    tokens = {name: np.where(mask, random.normal(size=IDS.shape), np.nan) for name in ("logp", "entropy")}
    tokens["logp_old"] = tokens["logp"]
    said = np.full(IDS.shape, np.nan)
    said[0, 1], said[0, 4], said[1, 0] = 1.0, 0.6, 2.0
    return {name: jnp.asarray(x, jnp.float32) for name, x in (tokens | {"said": said}).items()} | {
        "old": jnp.array([0.5, 0.5, 2.0, np.nan]),
        "target": jnp.array([3.0, 3.0, 1.0, np.nan]),
        "advantage": jnp.array([1.0, -1.0, 0.5, np.nan]),
    }


@functools.partial(jax.jit, static_argnames="settings")
def _run(d, said, ids, valid, counts, settings):
    values = None if said is None else (said, d["old"], d["target"])
    tokens = d["logp"], d["entropy"], d["logp_old"], None, None
    return objective.objective(*tokens, d["advantage"], ids, valid, counts, values, settings=settings)


def run(said, *, rows=(0, 1, 2), counts=None, settings=SETTINGS, valid=VALID):
    """Loss and metrics of the responses in these rows."""
    ids = part(rows)
    counts = counts or aggregate.denominators(ids, jnp.asarray(valid))
    return _run(data(), said, ids, jnp.asarray(valid), counts, settings)


def part(rows):
    return jnp.asarray(np.where(np.isin(np.arange(3), rows)[:, None], IDS, -1))


def test_the_term_is_a_mean_over_responses():
    said = data()["said"]
    with_it, metrics = run(said)
    without = run(None)[0]
    # 2.645 (held), 2.88 and 0.5
    mean = (2.645 + 2.88 + 0.5) / 3
    np.testing.assert_allclose(with_it - without, 0.5 * mean, rtol=1e-5)
    top, bottom = metrics["objective/value_loss"]
    np.testing.assert_allclose(top / bottom, mean, rtol=1e-6)
    off, metrics = run(said, settings=dataclasses.replace(SETTINGS, value_coef=0.0))
    np.testing.assert_allclose(off, without, rtol=1e-6)
    assert "objective/value_loss" in metrics and "objective/value_loss" not in run(None)[1]


def test_gradient_reaches_values_at_starts_only():
    gradient, _ = jax.grad(run, has_aux=True)(data()["said"])
    expected = np.zeros(IDS.shape)
    expected[0, 4], expected[1, 0] = (0.6 - 3) / 6, (2.0 - 1) / 6  # coefficient 1/2 over 3 responses
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)


def test_micro_batches_add_up():
    said = data()["said"]
    whole, metrics = run(said)
    parts = [(0,), (1, 2)]
    counts = aggregate.add(*(aggregate.denominators(part(rows), jnp.asarray(VALID)) for rows in parts))
    pieces = [run(said, rows=rows, counts=counts) for rows in parts]
    np.testing.assert_allclose(sum(piece[0] for piece in pieces), whole, rtol=1e-6)
    top, bottom = (sum(piece[1]["objective/value_loss"][i] for piece in pieces) for i in (0, 1))
    np.testing.assert_allclose(top / bottom, metrics["objective/value_loss"][0], rtol=1e-6)


def test_nothing_trained_gives_0_and_gradient_0():
    gradient, metrics = jax.grad(run, has_aux=True)(data()["said"], valid=np.zeros(4, bool))
    np.testing.assert_array_equal(gradient, 0)
    assert metrics["objective/value_loss"] == (0, 0)


def test_a_negative_coefficient_or_clip_is_refused():
    for field in ("value_coef", "value_clip"):
        with pytest.raises(ValueError, match=rf"{field}=-0.1 must not be negative"):
            dataclasses.replace(SETTINGS, **{field: -0.1})
