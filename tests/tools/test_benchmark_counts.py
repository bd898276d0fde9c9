"""Operations, bytes and the roofline of a model that is small enough to count by hand."""

from __future__ import annotations

import jax
import pytest

from model import params
from model.config import ModelConfig
from tools.benchmarks import counts, shapes
from tools.benchmarks.shapes import Sizes

# One layer: q 4x4, k 4x2, v 4x2, o 4x4, three of 4x8; table 10x4.
TINY = ModelConfig(vocab_size=10, width=4, layers=1, heads=2, kv_heads=1, head_size=2, hidden=8)
SIZES = Sizes(batch=2, group=2, prompt=3, new=2, length=5)


def test_weights() -> None:
    assert counts.layer_weights(TINY) == 16 + 8 + 8 + 16 + 96
    assert counts.weights(TINY) == 144 + 40
    # everything but norms
    spec = params.spec(shapes.MODELS["smollm2-135m"])
    norms = 30 * 2 * 576 + 576
    assert counts.weights(shapes.MODELS["smollm2-135m"]) == params.count(spec) - norms == 134_479_872


def test_forward() -> None:
    # 3 tokens through 144 weights; 6 positions of 4 numbers, scores and mixing; one row of 10 logits
    assert counts.causal(3) == 6
    flops = counts.forward_flops(TINY, tokens=3, attended=6, logits=1)
    assert flops == 2 * 3 * 144 + 4 * 6 * 4 + 2 * 4 * 10 == 1040
    assert counts.cache_bytes(TINY, 3) == 2 * 4 * 3 * 2 == 48


def test_forward_is_what_the_compiler_counts() -> None:
    def products(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    shape = jax.ShapeDtypeStruct
    lowered = jax.jit(products).lower(shape((3, 4), "float32"), shape((4, 10), "float32"))
    assert lowered.cost_analysis()["flops"] == 2 * 3 * 4 * 10  # type: ignore[index]


def test_generate_reads_a_prompt_once_a_group_and_the_weights_once_a_token() -> None:
    prefill, decode = counts.phases("generate", TINY, SIZES)
    assert prefill.flops == 1040 and prefill.bytes == 4 * 184 + 48
    # two rows, four positions each
    assert decode.flops == 2 * 2 * 144 + 4 * 8 * 4 + 2 * 2 * 40 == 864
    assert decode.bytes == 4 * 184 + 2 * 4 * 8 * 2


def test_update_is_three_forward_passes() -> None:
    (score,), (update,) = counts.phases("score", TINY, SIZES), counts.phases("update", TINY, SIZES)
    assert score.flops == 2 * 10 * 144 + 4 * 30 * 4 + 2 * 4 * 40 == 3680
    assert update.flops == 3 * 3680
    assert (score.bytes, update.bytes) == (4 * 184, 10 * 4 * 184)
    assert len(counts.phases("step", TINY, SIZES)) == 4


def test_roofline_takes_the_bound_of_each_phase() -> None:
    assert counts.Phase(100, 10).least_s(flops_per_s=10, bytes_per_s=10) == 10
    assert counts.Phase(10, 100).least_s(flops_per_s=10, bytes_per_s=10) == 10
    found = counts.least_s("generate", TINY, SIZES, flops_per_s=1.0, bytes_per_s=1e9)
    assert found == pytest.approx(1040 + 864)
