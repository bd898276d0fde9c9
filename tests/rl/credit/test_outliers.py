"""STAPO's localisation: numbers by hand, an independent float64 reference, laws, edges, devices and compilation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl.credit import outliers
from rl.credit.outliers import OutlierSettings

SIZE = 64  # one shape for all
SETTINGS = OutlierSettings("normalised", fence=1.5, singleton="raw", ddof=1, eps=1e-6)
# step group 0 has 1, 2, 3 (mean 2, deviation 1), step group 1 equal entropies, step group 2 one response
ENTROPY, STEP_GROUP = [1.0, 2.0, 3.0, 0.5, 0.5, 9.0], [0, 0, 0, 1, 1, 2]
# every switch in some combination
SWITCHES = (
    {},
    {"fence": 0.5, "ddof": 0, "eps": 0.1},
    {
        "fence": 0.25,
        "singleton": "inlier",
    },  # at 0, rounding decides: pairs have +-0.7071, and so have the quartiles
    {"fence": 1.0, "localisation": "shannon"},
    {"fence": 1.0, "localisation": "shannon", "singleton": "inlier"},
    {"localisation": "all"},
    {"localisation": "all", "singleton": "inlier"},
)


def columns(entropy, step_group, valid=None):
    """Table columns, padded with rows of step group 0 that hold NaN and are not valid."""
    extra = SIZE - len(entropy)
    valid = np.ones(len(entropy), bool) if valid is None else np.asarray(valid)
    return (
        jnp.asarray(np.r_[entropy, [np.nan] * extra], jnp.float32),
        jnp.asarray(np.r_[step_group, [0] * extra], jnp.int32),
        jnp.asarray(np.r_[valid, [False] * extra], bool),
    )


@functools.partial(jax.jit, static_argnames="settings")
def _locate(entropy, step_group, valid, settings):
    return outliers.locate(entropy, step_group, valid, settings=settings)


def locate(entropy, step_group, valid=None, **switches):
    """What is said of the rows given, as numpy; padding rows must be silent."""
    table = columns(entropy, step_group, valid)
    result = outliers.Outliers(
        *map(np.asarray, _locate(*table, settings=dataclasses.replace(SETTINGS, **switches)))
    )
    for column in result:
        assert not column[~np.asarray(table[2])].any()
    return outliers.Outliers(*(column[: len(entropy)] for column in result))


def reference(entropy, step_group, valid, *, localisation, fence, singleton, ddof, eps):
    """Loops in float64; no shared code."""
    entropy = np.asarray(entropy, np.float64)
    known = [r for r in range(len(entropy)) if valid[r] and np.isfinite(entropy[r])]
    normalised, outlier, extremity = (
        np.zeros(len(entropy)),
        np.zeros(len(entropy), bool),
        np.zeros(len(entropy)),
    )
    compared = []
    for r in known:
        members = [entropy[q] for q in known if step_group[q] == step_group[r]]
        if len(members) > 1:
            normalised[r] = (entropy[r] - np.mean(members)) / (np.std(members, ddof=ddof) + eps)
        elif singleton == "raw":
            normalised[r] = entropy[r]
        if len(members) > 1 or singleton == "raw":
            compared.append(r)
    value, among = (entropy, known) if localisation == "shannon" else (normalised, compared)
    if not among:
        return normalised, outlier, extremity
    low, middle, high = np.percentile(value[among], [25, 50, 75])
    low, high = low - fence * (high - low), high + fence * (high - low)
    if localisation == "all":
        outlier[known], extremity[known] = True, normalised[known] - middle
        return normalised, outlier, extremity
    for r in among:
        outlier[r] = not low <= value[r] <= high
        extremity[r] = min(value[r] - low, 0) + max(value[r] - high, 0)
    return normalised, outlier, extremity


def ragged(seed):
    """60 responses of 30 states in random order: some alone, some not valid (NaN), two valid without an entropy."""
    random = np.random.default_rng(seed)
    step_group = np.where(random.random(60) < 0.85, random.integers(0, 6, 60), random.integers(6, 30, 60))
    entropy = random.gamma(0.5, 1.0, 60) + step_group / 10
    valid = random.random(60) < 0.85
    entropy[~valid] = np.nan
    entropy[np.flatnonzero(valid)[:2]] = np.nan, np.inf
    return entropy.astype(np.float32), step_group, valid


# numbers and reference


def test_normalised_numbers():
    result = locate(ENTROPY, STEP_GROUP, eps=0.0)
    # ordered -1, 0, 0, 0, 1, 9: quartiles 0 and 0.75, fences -1.125 and 1.875
    np.testing.assert_allclose(result.normalised, [-1, 0, 1, 0, 0, 9], rtol=1e-6)
    np.testing.assert_array_equal(result.outlier, [False] * 5 + [True])
    np.testing.assert_allclose(result.extremity, [0, 0, 0, 0, 0, 7.125], rtol=1e-6)
    # fences -0.75 and 1.5
    strict = locate(ENTROPY, STEP_GROUP, eps=0.0, fence=1.0)
    np.testing.assert_array_equal(strict.outlier, [True, False, False, False, False, True])
    np.testing.assert_allclose(strict.extremity, [-0.25, 0, 0, 0, 0, 7.5], rtol=1e-6)
    # the population's deviation is sqrt(2/3) = 0.8164966, and a large eps
    np.testing.assert_allclose(
        locate(ENTROPY, STEP_GROUP, ddof=0, eps=0.5).normalised,
        [-0.7595918, 0, 0.7595918, 0, 0, 9],
        rtol=1e-6,
    )


def test_a_lone_inlier_is_left_out_of_the_quartiles():
    # -1, 0, 0, 0, 1: both quartiles and both fences are 0
    result = locate(ENTROPY, STEP_GROUP, eps=0.0, singleton="inlier")
    np.testing.assert_allclose(result.normalised, [-1, 0, 1, 0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(result.outlier, [True, False, True, False, False, False])
    np.testing.assert_allclose(result.extremity, [-1, 0, 1, 0, 0, 0], rtol=1e-6)


def test_shannon_and_all_numbers():
    # 0.5, 0.5, 1, 2, 3, 9: quartiles 0.625 and 2.75, fences -2.5625 and 5.9375
    shannon = locate(ENTROPY, STEP_GROUP, localisation="shannon", eps=0.0)
    np.testing.assert_array_equal(shannon.outlier, [False] * 5 + [True])
    np.testing.assert_allclose(shannon.extremity, [0, 0, 0, 0, 0, 3.0625], rtol=1e-6)
    np.testing.assert_allclose(shannon.normalised, [-1, 0, 1, 0, 0, 9], rtol=1e-6)
    # H_n of 1, 3, 5 alone and of a pair 0, 2: -0.7071, 0.7071, 1, 3, 5; the median is 1
    every = locate([1.0, 3.0, 5.0, 0.0, 2.0], [0, 1, 2, 3, 3], localisation="all")
    assert every.outlier.all()
    np.testing.assert_allclose(every.extremity, [0, 2, 4, -1.7071068, -0.2928932], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("switches", SWITCHES)
def test_against_float64_reference(switches):
    settings = dataclasses.asdict(dataclasses.replace(SETTINGS, **switches))
    found = 0
    for seed in range(8):
        normalised, outlier, extremity = reference(*ragged(seed), **settings)
        result = locate(*ragged(seed), **switches)
        np.testing.assert_allclose(result.normalised, normalised, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result.extremity, extremity, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(result.outlier, outlier)
        found += outlier.sum()
    assert found > 5


# laws


@pytest.mark.parametrize("switches", SWITCHES)
def test_neither_row_order_nor_names_of_groups_matter(switches):
    entropy, step_group, valid = ragged(3)
    order, names = np.random.default_rng(0).permutation(60), np.random.default_rng(1).permutation(SIZE)
    base = locate(entropy, step_group, valid, **switches)
    shuffled = locate(entropy[order], names[step_group][order], valid[order], **switches)
    for one, other in zip(shuffled, base, strict=True):
        np.testing.assert_allclose(one, other[order], rtol=1e-5, atol=1e-6)
    assert base.outlier.any()


@pytest.mark.parametrize("switches", SWITCHES)
def test_rows_that_are_not_valid_or_have_no_entropy_do_not_exist(switches):
    entropy, step_group, valid = ragged(4)
    known = valid & np.isfinite(entropy)
    assert (valid & ~known).sum() == 2
    alone = locate(entropy[known], step_group[known], **switches)
    base = locate(entropy, step_group, valid, **switches)
    for one, other in zip(alone, base, strict=True):
        np.testing.assert_allclose(one, other[known], rtol=1e-6, atol=1e-6)
        assert not other[~known].any()


def test_the_level_of_a_state_does_not_matter_unless_raw():
    entropy, step_group, valid = ragged(5)
    base = locate(entropy, step_group, valid, singleton="inlier", fence=0.5)
    moved = locate(entropy + 3 * (step_group % 3), step_group, valid, singleton="inlier", fence=0.5)
    np.testing.assert_allclose(moved.normalised, base.normalised, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(moved.outlier, base.outlier)
    assert base.outlier.any()
    raw = [
        locate(e, step_group, valid, localisation="shannon")
        for e in (entropy, entropy + 3 * (step_group % 3))
    ]
    assert (raw[0].outlier != raw[1].outlier).any()


def test_a_wider_fence_locates_fewer():
    for seed in range(4):
        table = ragged(seed)
        for localisation in ("normalised", "shannon"):
            found = [
                locate(*table, localisation=localisation, fence=fence).outlier for fence in (0.0, 1.5, 3.0)
            ]
            for wide, wider in zip(found, found[1:]):
                assert not (wider & ~wide).any()
            assert 0.3 < found[0].sum() / table[2].sum() < 0.6 and found[-1].sum() < found[0].sum()


def test_the_extremity_is_signed_and_set_where_and_only_where_there_is_an_outlier():
    for switches in SWITCHES[:5]:
        result = locate(*ragged(6), **switches)
        np.testing.assert_array_equal(result.extremity != 0, result.outlier)
    low = locate([5.0, 5.1, 4.9, 5.05, 4.95, 0.0, 10.0], [0] * 7, localisation="shannon")
    assert low.extremity[5] < 0 < low.extremity[6]


# edges


def test_every_state_once_is_the_raw_entropy_or_nothing():
    entropy = np.float32([0.3, 0.31, 0.29, 0.3, 2.0])
    raw = locate(entropy, range(5))
    np.testing.assert_array_equal(raw.normalised, entropy)  # not over 1 + eps
    assert raw.outlier.tolist() == [False] * 4 + [True]
    shannon = locate(entropy, range(5), localisation="shannon")
    np.testing.assert_array_equal(raw.extremity, shannon.extremity)
    for column in locate(entropy, range(5), singleton="inlier"):
        assert not column.any()
    every = locate(entropy, range(5), singleton="inlier", localisation="all")
    assert every.outlier.all() and not every.extremity.any()


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_equal_entropies_give_exactly_0(eps):
    for fence in (0.0, 1.5) if eps else (0.0,):
        result = locate([0.1] * 7 + [0.7] * 5, [0] * 7 + [1] * 5, eps=eps, fence=fence)
        np.testing.assert_array_equal(result.normalised, 0)
        assert not result.outlier.any()
        assert not locate([0.1] * 7, [0] * 7, eps=eps, fence=fence, localisation="shannon").outlier.any()


def test_too_few_for_a_deviation_give_0():
    result = locate([0.1, 5.0], [0, 0], ddof=2)
    np.testing.assert_array_equal(result.normalised, 0)
    assert not result.outlier.any()


def test_nothing_outside_and_a_far_fence():
    assert not locate([1.0, 2.0, 3.0, 4.0], [0] * 4).outlier.any()
    assert not locate(*ragged(0), fence=100.0).outlier.any()


def test_one_response_is_no_outlier():
    for switches in SWITCHES[:5]:
        assert not locate([3.0], [4], **switches).outlier.any()
    one = locate([3.0], [4], localisation="all")
    assert one.outlier.all() and not one.extremity.any()


@pytest.mark.parametrize("switches", SWITCHES)
def test_no_valid_row_and_no_entropy_at_all(switches):
    for entropy, valid in (([1.0, 2.0], [False, False]), ([np.nan, np.inf], [True, True])):
        for column in locate(entropy, [0, 0], valid, **switches):
            assert not column.any()


def test_a_row_outside_every_step_group_is_never_an_outlier():
    result = locate([*ENTROPY, 50.0, 50.0], [*STEP_GROUP, -1, SIZE], localisation="all")
    assert result.outlier.tolist() == [True] * 6 + [False] * 2


def test_no_gradient_flows_through_it_and_nan_reaches_none():
    table = columns(*ragged(1))
    for localisation in outliers.LOCALISATIONS:
        settings = dataclasses.replace(SETTINGS, localisation=localisation)

        def total(entropy, settings=settings):
            result = outliers.locate(entropy, *table[1:], settings=settings)
            return jnp.sum(jnp.square(result.normalised)) + jnp.sum(result.extremity)

        value, gradient = jax.jit(jax.value_and_grad(total))(table[0])
        np.testing.assert_array_equal(gradient, 0)
        assert np.isfinite(value) and value != 0


# devices and compilation


def test_step_groups_split_over_8_devices_equal_one_device():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    assert mesh.size == 8
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    for switches in ({}, {"localisation": "all"}):
        data, settings = columns(*ragged(7)), dataclasses.replace(SETTINGS, **switches)
        split = _locate(*(jax.device_put(column, sharding) for column in data), settings=settings)
        one = _locate(*data, settings=settings)
        np.testing.assert_array_equal(split.outlier, one.outlier)
        np.testing.assert_allclose(split.normalised, one.normalised, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(split.extremity, one.extremity, rtol=1e-5, atol=1e-6)
        assert np.asarray(one.outlier).any()


def test_new_numbers_do_not_retrace():
    traces = []

    @jax.jit
    def f(entropy, step_group, valid):
        traces.append(1)
        return outliers.locate(entropy, step_group, valid, settings=SETTINGS)

    counts = [int(f(*columns(*ragged(seed))).outlier.sum()) for seed in range(3)]
    assert len(traces) == 1 and len(set(counts)) > 1


def test_narrow_entropies_are_widened():
    kinds = (jnp.bfloat16, jnp.int32, bool)
    result = jax.eval_shape(
        functools.partial(outliers.locate, settings=SETTINGS), *(jax.ShapeDtypeStruct((4,), k) for k in kinds)
    )
    assert [column.dtype for column in result] == [jnp.float32, jnp.bool, jnp.float32]


# settings


def test_unknown_names_and_impossible_numbers_are_refused():
    for changes, message in (
        ({"localisation": "raw"}, r"unknown localisation='raw'; known: normalised, shannon, all"),
        ({"singleton": "zero"}, r"unknown singleton='zero'; known: raw, inlier"),
        ({"fence": -0.5}, r"fence=-0\.5, ddof=1, eps=1e-06 must be finite and not negative"),
        ({"fence": float("nan")}, r"fence=nan"),
        ({"fence": float("inf")}, r"fence=inf"),
        ({"ddof": -1}, r"ddof=-1"),
        ({"eps": -1e-6}, r"eps=-1e-06"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(SETTINGS, **changes)
