"""The loss of a micro-batch: a float64 reference, finite differences, micro-batching, masks, reports of peers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.objective import aggregate, objective

B, T, R = 8, 8, 8  # one shape for most tests, so few programs are compiled
FULL = objective.ObjectiveSettings(
    surrogate="token",
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=3.0,
    ratio_clamp=20.0,
    kl_coef=0.05,
    kl_kind="k3",
    kl_input_clamp=20.0,
    kl_output_clamp=10.0,
    entropy_coef=0.01,
    aggregation="token_mean",
    constant_length=5.0,
    importance_cap=2.0,
)
PLAIN = dataclasses.replace(FULL, dual_clip=0.0, kl_coef=0.0, entropy_coef=0.0, importance_cap=0.0)


def batch(seed=0, dtype: Any = np.float32) -> dict[str, Any]:
    """Ragged responses, two in row 1, the one of row 4 not valid; NaN and inf in every other token."""
    random = np.random.default_rng(seed)
    response_id = np.full((B, T), -1)
    for r, (row, start, length) in enumerate([(0, 2, 1), (1, 0, 3), (1, 4, 4), (2, 3, 5), (4, 1, 2)]):
        response_id[row, start : start + length] = r
    valid = np.array([True, True, True, True, False, True, False, False])  # 5 has no tokens
    mask = (response_id >= 0) & valid[response_id]
    old = -random.gamma(1.0, 1.0, (B, T))
    tokens = {
        "logp": old + random.normal(0, 0.5, (B, T)),
        "entropy": random.gamma(1.0, 1.0, (B, T)),
        "logp_old": old,
        "logp_ref": old + random.normal(0, 0.5, (B, T)),
        "logp_sampler": old + random.normal(0, 1.0, (B, T)),
    }
    junk = np.where(random.random((B, T)) < 0.5, np.nan, np.inf)
    tokens = {name: np.where(mask, values, junk).astype(dtype) for name, values in tokens.items()}
    advantage = np.where(valid, random.normal(0, 2, R), np.nan).astype(dtype)
    return tokens | {"advantage": advantage, "response_id": response_id, "valid": valid}


def place(data) -> dict[str, Any]:
    return {name: jnp.asarray(values) for name, values in data.items()}


def loss_of(data, settings, counts=None):
    data = place(data)
    if counts is None:
        counts = aggregate.denominators(data["response_id"], data["valid"])
    return objective.objective(**data, denominators=counts, settings=settings)


def gradients(data, settings, counts=None):
    """Loss and its gradients in logp and entropy."""
    data = place(data)

    def f(logp, entropy):
        return loss_of(data | {"logp": logp, "entropy": entropy}, settings, counts)[0]

    return jax.value_and_grad(f, argnums=(0, 1))(data["logp"], data["entropy"])


@jax.jit
def all_aggregations(data):
    """Loss and gradients under every aggregation: one compilation a shape."""
    return {
        name: gradients(data, dataclasses.replace(FULL, aggregation=name)) for name in aggregate.AGGREGATIONS
    }


def reference(data, settings):
    """The same in float64 loops over responses; no shared code."""
    total, responses = [], 0
    lengths = {}
    for r in range(R):
        cells = list(zip(*np.nonzero(data["response_id"] == r), strict=True))
        if not data["valid"][r] or not cells:
            continue
        responses += 1
        lengths[r] = len(cells)
        for cell in cells:
            value = {name: float(data[name][cell]) for name in data if np.shape(data[name]) == (B, T)}
            a, ratio = float(data["advantage"][r]), np.exp(value["logp"] - value["logp_old"])
            gain = min(ratio * a, np.clip(ratio, 1 - settings.clip_low, 1 + settings.clip_high) * a)
            if settings.dual_clip and a < 0:
                gain = max(gain, settings.dual_clip * a)
            if settings.importance_cap:
                gain *= min(np.exp(value["logp_old"] - value["logp_sampler"]), settings.importance_cap)
            d = value["logp_ref"] - value["logp"]
            divergence = {"k1": -d, "k2": d * d / 2, "k3": min(np.exp(d) - d - 1, 10)}[settings.kl_kind]
            token = -gain + settings.kl_coef * divergence - settings.entropy_coef * value["entropy"]
            total.append((r, token))
    per_token = {
        "token_mean": lambda r: 1 / sum(lengths.values()),
        "seq_mean_token_mean": lambda r: 1 / lengths[r] / responses,
        "seq_mean_token_sum": lambda r: 1 / responses,
        "seq_mean_token_sum_norm": lambda r: 1 / responses / settings.constant_length,
    }[settings.aggregation]
    return sum(per_token(r) * token for r, token in total)


# numbers and reference


def test_numbers():
    # two responses of 1 and 3 tokens, advantages 2 and -1, ratios 1 and 1.5, 1, 0.5 with clips 0.2 / 0.28:
    # -2; 1.5, 1, 0.8 (held)
    logp_old = jnp.zeros((2, 3))
    logp = jnp.log(jnp.array([[1.0, 1.0, 1.0], [1.5, 1.0, 0.5]]))
    response_id, valid = jnp.array([[-1, 0, -1], [1, 1, 1]]), jnp.ones(2, bool)
    counts = aggregate.denominators(response_id, valid)
    expected = {
        "token_mean": (-2 + 3.3) / 4,
        "seq_mean_token_mean": (-2 + 1.1) / 2,
        "seq_mean_token_sum": (-2 + 3.3) / 2,
        "seq_mean_token_sum_norm": (-2 + 3.3) / 10,
    }

    @jax.jit
    def run(logp):
        zeros, advantage = jnp.zeros((2, 3)), jnp.array([2.0, -1.0])
        return {
            name: objective.objective(
                logp,
                zeros,
                logp_old,
                None,
                None,
                advantage,
                response_id,
                valid,
                counts,
                settings=dataclasses.replace(PLAIN, aggregation=name),
            )
            for name in expected
        }

    for name, (loss, metrics) in run(logp).items():
        np.testing.assert_allclose(loss, expected[name], rtol=1e-5)
        np.testing.assert_allclose(metrics["objective/ratio_mean"], (4.0, 4.0), rtol=1e-6)
        np.testing.assert_allclose(metrics["objective/clip_low_fraction"], (1, 4))
        np.testing.assert_allclose(metrics["objective/loss"], (expected[name], 1), rtol=1e-5)


@pytest.mark.parametrize("aggregation", aggregate.AGGREGATIONS)
@pytest.mark.parametrize("kl_kind", ["k1", "k2", "k3"])
def test_against_float64_reference(aggregation, kl_kind):
    settings = dataclasses.replace(FULL, aggregation=aggregation, kl_kind=kl_kind)
    for seed in range(3):
        data = batch(seed)
        np.testing.assert_allclose(loss_of(data, settings)[0], reference(data, settings), rtol=1e-5)


@pytest.mark.parametrize("surrogate", ["token", "sequence"])
def test_gradients_by_finite_differences_in_float64(surrogate):
    settings = dataclasses.replace(
        FULL, surrogate=surrogate, aggregation="seq_mean_token_mean", dual_clip=1.5
    )
    with jax.enable_x64():
        data = place(batch(1, np.float64))
        mask = aggregate.token_mask(data["response_id"], data["valid"])
        clean = {name: jnp.where(mask, data[name], 0) for name in ("logp", "entropy")}

        def f(logp, entropy):
            return loss_of(data | {"logp": logp, "entropy": entropy}, settings)[0]

        def differences(which):
            steps = 1e-6 * jnp.eye(B * T).reshape(-1, B, T)

            def central(step):
                up, down = dict(clean), dict(clean)
                up[which], down[which] = clean[which] + step, clean[which] - step
                return (f(**up) - f(**down)) / 2e-6

            return jax.vmap(central)(steps).reshape(B, T)

        exact = jax.jit(jax.grad(f, argnums=(0, 1)))(clean["logp"], clean["entropy"])
        numeric = jax.jit(lambda: (differences("logp"), differences("entropy")))()
    for one, other in zip(exact, numeric, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)
        assert (np.asarray(one)[~np.asarray(mask)] == 0).all()
    assert np.abs(exact[0]).max() > 0.05


def test_gradient_flows_through_logp_and_entropy_only():
    data = place({k: np.nan_to_num(v) if v.dtype == np.float32 else v for k, v in batch(0).items()})
    frozen = ("logp_old", "logp_ref", "logp_sampler", "advantage")
    result = jax.jit(jax.grad(lambda x: loss_of(data | x, FULL)[0]))({name: data[name] for name in frozen})
    for name in frozen:
        np.testing.assert_array_equal(result[name], 0, err_msg=name)


# composition


def test_advantages_per_token_and_per_response_are_the_same_thing():
    data = batch(2)
    tokens = np.where(data["response_id"] >= 0, data["advantage"][data["response_id"]], np.nan)
    per_token = loss_of(data | {"advantage": tokens.astype(np.float32)}, FULL)[0]
    np.testing.assert_array_equal(per_token, loss_of(data, FULL)[0])
    # and a token's own advantage counts
    tokens[1, 0] += 1
    assert loss_of(data | {"advantage": tokens.astype(np.float32)}, FULL)[0] != per_token


def test_terms_add_up():
    data = batch(3)
    base = loss_of(data, dataclasses.replace(PLAIN, importance_cap=2.0, dual_clip=3.0))[0]
    full, metrics = loss_of(data, FULL)
    kl_mean, entropy_mean = (
        metrics[f"objective/{name}"][0] / metrics[f"objective/{name}"][1]
        for name in ("kl_mean", "entropy_mean")
    )
    np.testing.assert_allclose(full, base + 0.05 * kl_mean - 0.01 * entropy_mean, rtol=1e-5)
    np.testing.assert_allclose(metrics["objective/policy_loss"][0], base, rtol=1e-6)


def test_reference_and_sampler_given_without_a_coefficient_are_reported_only():
    data = place(batch(3))
    counts = aggregate.denominators(data["response_id"], data["valid"])
    loss, metrics = loss_of(data, PLAIN)
    without = data | {"logp_ref": None, "logp_sampler": None}
    same, fewer = objective.objective(**without, denominators=counts, settings=PLAIN)
    np.testing.assert_array_equal(same, loss)
    assert set(metrics) - set(fewer) == {"objective/kl_mean", "objective/sampler_gap_mean"}


def test_importance_weights_are_truncated_and_scale_the_surrogate():
    data = batch(0)
    mask = np.asarray(aggregate.token_mask(*(jnp.asarray(data[k]) for k in ("response_id", "valid"))))
    gaps = np.array([0.5, 100.0, -100.0])  # weights 1.6487, 2 (truncated), 0
    gap = np.zeros((B, T), np.float32)
    gap[mask] = gaps[np.arange(mask.sum()) % 3]
    data["logp_sampler"] = np.where(mask, data["logp_old"] - gap, np.nan).astype(np.float32)
    _, metrics = loss_of(data, FULL)
    share, tokens = metrics["objective/importance_truncated_fraction"]
    assert (share, tokens) == ((gap == 100).sum(), mask.sum())
    np.testing.assert_allclose(
        metrics["objective/importance_mean"][0],
        1.6487213 * (gap == 0.5).sum() + 2 * (gap == 100).sum(),
        rtol=1e-5,
    )
    _, (gradient, _) = gradients(data, dataclasses.replace(FULL, kl_coef=0.0))
    assert np.isfinite(gradient).all()
    assert (np.asarray(gradient)[gap == -100] == 0).all()


@pytest.mark.parametrize("surrogate", ["token", "sequence", "sequence_token"])
def test_nothing_valid_gives_loss_0_and_gradient_0(surrogate):
    data = batch(0) | {"valid": np.zeros(R, bool)}
    settings = dataclasses.replace(FULL, surrogate=surrogate, aggregation="seq_mean_token_mean")
    loss, both = gradients(data, settings)
    assert loss == 0
    for gradient in both:
        np.testing.assert_array_equal(gradient, 0)
    for numerator, denominator in loss_of(data, settings)[1].values():
        assert (numerator, denominator) == (0, 0)


def test_sharded_over_8_devices_equals_one_device():
    data = place(batch(1))
    settings = dataclasses.replace(FULL, surrogate="sequence", aggregation="seq_mean_token_mean")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    assert mesh.size == 8
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))

    @jax.jit
    @jax.value_and_grad
    def run(logp, rest):
        return loss_of(rest | {"logp": logp}, settings)[0]

    split = {name: jax.device_put(values, sharding) for name, values in data.items()}
    one, many = run(data["logp"], data), run(split["logp"], split)
    np.testing.assert_allclose(many[0], one[0], rtol=1e-6)
    np.testing.assert_allclose(many[1], one[1], rtol=1e-5, atol=1e-7)
    assert np.abs(one[1]).max() > 0.01


# settings


def test_settings_refuse_unknown_names_and_impossible_numbers():
    for field, value, message in (
        ("surrogate", "seq", "unknown surrogate='seq'; known: token, sequence, sequence_token"),
        ("kl_kind", "k9", "unknown kl_kind='k9'; known: k1, k2, k3"),
        ("aggregation", "mean", "unknown aggregation='mean'; known: token_mean"),
        ("clip_low", 1.5, "clip_low=1.5"),
        ("dual_clip", 1.1, "dual_clip=1.1 must be 0"),
        ("constant_length", 0.0, "constant_length=0.0 must be positive"),
        ("importance_cap", -1.0, "importance_cap=-1.0 must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(FULL, **{field: value})


def test_a_term_without_its_input_is_refused():
    data = place(batch(0))
    counts = aggregate.denominators(data["response_id"], data["valid"])
    for name in ("logp_ref", "logp_sampler"):
        with pytest.raises(ValueError, match=f"needs {name}"):
            objective.objective(**(data | {name: None}), denominators=counts, settings=FULL)


# reports of peers (their numbers in the project's list)


def test_report_9_5_responses_padded_to_8_give_the_gradient_of_5():
    # rows of their own: 5 real ones; then 3 more rows that copy real tokens for responses that are not valid
    random = np.random.default_rng(0)
    five = {
        name: random.normal(-1, 0.3, (5, T)).astype(np.float32)
        for name in batch(0)
        if name.startswith("logp")
    }
    five["entropy"] = random.random((5, T)).astype(np.float32)
    response_id = np.where(np.arange(T) < np.arange(1, 6)[:, None], np.arange(5)[:, None], -1)
    advantage = np.array([1.0, -2.0, 0.5, 3.0, -1.0], np.float32)
    eight = {name: np.concatenate([values, values[:3]]) for name, values in five.items()}
    five |= {"response_id": response_id, "advantage": advantage, "valid": np.ones(5, bool)}
    copied = np.where(response_id[:3] >= 0, response_id[:3] + 5, -1)
    eight |= {
        "response_id": np.concatenate([response_id, copied]),
        "advantage": np.r_[advantage, advantage[:3]],
        "valid": np.arange(8) < 5,
    }
    alone, padded = all_aggregations(five), all_aggregations(eight)
    for name, (loss, (gradient, _)) in alone.items():
        padded_loss, (padded_gradient, _) = padded[name]
        np.testing.assert_allclose(padded_loss, loss, rtol=1e-5)
        np.testing.assert_allclose(padded_gradient[:5], gradient, rtol=1e-5)
        np.testing.assert_array_equal(padded_gradient[5:], 0)
        assert np.abs(gradient).max() > 0.01


def toy(logits, temperature=1.0):
    """Log-probability of token 0 and entropy from logits [B, T, V], as a scorer gives them."""
    logp = jax.nn.log_softmax(logits / temperature, axis=-1)
    return logp[..., 0], -jnp.sum(jnp.exp(logp) * logp, axis=-1)


def test_report_10_observation_logits_change_nothing():
    data = place(
        {k: np.nan_to_num(v, posinf=0.0) if v.dtype == np.float32 else v for k, v in batch(0).items()}
    )
    mask = aggregate.token_mask(data["response_id"], data["valid"])
    logits = jax.random.normal(jax.random.key(0), (B, T, 5))

    @jax.jit
    @jax.value_and_grad
    def run(logits):
        logp, entropy = toy(logits)
        return loss_of(data | {"logp": logp, "entropy": entropy}, FULL)[0]

    loss, gradient = run(logits)
    np.testing.assert_array_equal(gradient[~mask], 0)
    assert np.abs(gradient[mask]).max(axis=-1).min() > 0  # KL and entropy reach every response token
    changed = jnp.where(mask[..., None], logits, logits * -7 + 3)
    np.testing.assert_array_equal(run(changed)[0], loss)


def test_report_15_one_temperature_in_all_paths_gives_ratio_1():
    data = place(batch(0))
    logits = jax.random.normal(jax.random.key(1), (B, T, 5))

    def metrics(**temperatures):
        paths = {name: toy(logits, t)[0] for name, t in ({"logp": 0.6} | temperatures).items()}
        mean = loss_of(data | paths | {"entropy": toy(logits, 0.6)[1]}, FULL)[1]
        return {name: float(n / d) for name, (n, d) in mean.items()}

    same = metrics(logp_old=0.6, logp_ref=0.6, logp_sampler=0.6)
    assert same["objective/ratio_mean"] == 1
    for name in ("kl_mean", "old_kl_mean", "sampler_gap_mean", "clip_low_fraction", "clip_high_fraction"):
        assert same[f"objective/{name}"] == 0
    assert same["objective/importance_mean"] == 1
    # forgetting it in one path shows
    assert metrics(logp_old=1.0, logp_ref=0.6, logp_sampler=0.6)["objective/old_kl_mean"] > 0.01
    assert metrics(logp_old=0.6, logp_ref=1.0, logp_sampler=0.6)["objective/kl_mean"] > 0.01
    assert metrics(logp_old=0.6, logp_ref=0.6, logp_sampler=1.0)["objective/sampler_gap_mean"] > 0.1


@pytest.mark.parametrize("surrogate", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", aggregate.AGGREGATIONS)
def test_report_16_micro_batches_of_lengths_1_and_3_equal_the_batch(aggregation, surrogate):
    settings = dataclasses.replace(FULL, aggregation=aggregation, surrogate=surrogate)
    data = batch(5)
    # response 0 (1 token) in one micro-batch, responses 1 and 2 (3 and 4 tokens, one row) in the next, the rest last
    rows = [[0], [1], [2, 3, 4]]

    def part(keep):
        ids = np.where(np.isin(np.arange(B), keep)[:, None], data["response_id"], -1)
        return data | {"response_id": ids}

    counts = aggregate.add(
        *(
            aggregate.denominators(jnp.asarray(part(keep)["response_id"]), jnp.asarray(data["valid"]))
            for keep in rows
        )
    )
    loss, both = gradients(data, settings)
    pieces = [gradients(part(keep), settings, counts) for keep in rows]
    np.testing.assert_allclose(sum(piece[0] for piece in pieces), loss, rtol=1e-5)
    for i in range(2):
        np.testing.assert_allclose(sum(piece[1][i] for piece in pieces), both[i], rtol=1e-5, atol=1e-8)
    assert np.abs(both[0]).max() > 0.01
    # metrics add and divide to those of the batch
    whole, parts = loss_of(data, settings)[1], [loss_of(part(keep), settings, counts)[1] for keep in rows]
    for name, (numerator, denominator) in whole.items():
        merged = sum(p[name][0] for p in parts) / sum(p[name][1] for p in parts)
        np.testing.assert_allclose(merged, numerator / denominator, rtol=1e-5, atol=1e-7, err_msg=name)


def test_report_16_rows_of_another_width_change_nothing():
    settings = dataclasses.replace(FULL, aggregation="seq_mean_token_mean")
    data = batch(5)
    wide = {
        name: np.pad(values, ((0, 0), (3, 2)), constant_values=-1 if name == "response_id" else 7)
        if np.shape(values) == (B, T)
        else values
        for name, values in data.items()
    }
    loss, (gradient, _) = gradients(data, settings)
    wide_loss, (wide_gradient, _) = jax.jit(lambda d: gradients(d, settings))(wide)
    np.testing.assert_allclose(wide_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(wide_gradient[:, 3:-2], gradient, rtol=1e-6)


def test_old_logp_chooses_what_the_ratio_is_taken_against():
    ids, valid = jnp.array([[0, 0]]), jnp.array([True])
    counts = aggregate.denominators(ids, valid)
    now, old, sampler = jnp.array([[-1.0, -2.0]]), jnp.array([[-1.1, -2.0]]), jnp.array([[-1.3, -2.0]])
    for kind, expected in (("recomputed", 0.1), ("sampler", 0.3), ("current", 0.0)):
        settings = dataclasses.replace(PLAIN, old_logp=kind, clip_low=0.9, clip_high=9.0)
        _, metrics = objective.objective(
            now, jnp.zeros((1, 2)), old, None, sampler, jnp.ones(1), ids, valid, counts, settings=settings
        )
        top, bottom = metrics["objective/ratio_mean"]
        np.testing.assert_allclose(top / bottom, (np.exp(expected) + 1) / 2, rtol=1e-6)


def test_importance_mask_drops_responses_that_the_samplers_see_differently():
    ids, valid = jnp.array([[0, 0, 1, 1]]), jnp.array([True, True])
    counts = aggregate.denominators(ids, valid)
    old = jnp.full((1, 4), -1.0)
    sampler = jnp.array([[-1.0, -1.0, -3.0, -1.0]])  # mean gap of response 1: 1 nat
    settings = dataclasses.replace(PLAIN, importance_mask=2.0)

    def loss(logp):
        return objective.objective(
            logp, jnp.zeros((1, 4)), old, None, sampler, jnp.ones(2), ids, valid, counts, settings=settings
        )

    gradient, metrics = jax.grad(loss, has_aux=True)(old)
    assert np.all(gradient[0, :2] != 0) and np.all(gradient[0, 2:] == 0)
    assert float(metrics["objective/importance_masked_fraction"][0]) == 2
    with pytest.raises(ValueError, match="at least 1"):
        dataclasses.replace(PLAIN, importance_mask=0.5)
