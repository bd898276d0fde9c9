"""Our decoder against transformers on tiny random checkpoints: in, out, and back in."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model.layers import rope_frequencies
from model.weights import pretrained
from tests.parity.logits import our_logits, reference_logits

pytest.importorskip("torch", reason="transformers' reference models need torch: pip install -e .[test]")

TOLERANCE = 1e-4


# One shape for all tests: one compilation a family.
TOKENS = np.random.default_rng(1).integers(0, 131, (2, 12))
NEAR = np.tile(np.arange(12), (2, 1))


def test_logits_agree(reference: Any, reference_dir: Path):
    params, config = pretrained.load(reference_dir)
    expected = reference_logits(reference, TOKENS, NEAR)
    assert expected.std() > 0.5  # large enough for the tolerance to mean something
    np.testing.assert_allclose(our_logits(params, config, TOKENS, NEAR), expected, atol=TOLERANCE, rtol=0)


def test_logits_agree_at_far_positions(reference: Any, reference_dir: Path):
    # Rope sees differences of positions only: the jumps bring the scaled long waves into play.
    params, config = pretrained.load(reference_dir)
    steps = [0, 1, 2, 700, 701, 4000, 8191, 8192, 8193, 12_000, 20_000, 20_001]
    far = np.array([steps, [step + 9000 for step in steps]])
    expected = reference_logits(reference, TOKENS, far)
    np.testing.assert_allclose(our_logits(params, config, TOKENS, far), expected, atol=TOLERANCE, rtol=0)


def test_exported_directory_gives_transformers_the_same_logits(
    reference: Any, reference_dir: Path, tmp_path: Path
):
    import transformers

    params, config = pretrained.load(reference_dir)
    pretrained.export(params, config, None, tmp_path / "out")
    exported = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype="float32", attn_implementation="eager"
    )
    assert type(exported) is type(reference)
    expected = reference_logits(reference, TOKENS, NEAR)
    np.testing.assert_array_equal(reference_logits(exported, TOKENS, NEAR), expected)
    again, config_again = pretrained.load(tmp_path / "out")
    assert config_again == config
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_same_tensor_names_as_transformers_writes(reference: Any, reference_dir: Path, tmp_path: Path):
    from safetensors import safe_open

    pretrained.export(*pretrained.load(reference_dir), None, tmp_path / "out")
    with (
        safe_open(reference_dir / "model.safetensors", "numpy") as theirs,
        safe_open(tmp_path / "out" / "model.safetensors", "numpy") as ours,
    ):
        assert set(ours.keys()) == set(theirs.keys())


def test_rope_frequencies_are_those_of_transformers_to_the_bit(reference: Any, reference_dir: Path):
    # A unit in the last place of a frequency is 5e-4 radians at position 10,000.
    config = pretrained.load_config(reference_dir)
    expected = reference.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_array_equal(rope_frequencies(config), expected)


@pytest.mark.parametrize("family", ["qwen2-tied"], indirect=True)
def test_reads_shards_that_transformers_wrote_and_the_other_way(
    reference: Any, reference_dir: Path, tmp_path: Path
):
    import transformers

    reference.save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    params, config = pretrained.load(tmp_path / "shards")
    jax.tree.map(np.testing.assert_array_equal, params, pretrained.load(reference_dir)[0])
    pretrained.export(params, config, None, tmp_path / "out", shard_bytes=60_000)
    exported = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype="float32", attn_implementation="eager"
    )
    np.testing.assert_array_equal(
        reference_logits(exported, TOKENS, NEAR), reference_logits(reference, TOKENS, NEAR)
    )


@pytest.mark.parametrize("family", ["qwen3"], indirect=True)
def test_bfloat16_files_are_read_exactly(reference: Any, tmp_path: Path):
    import torch
    import transformers

    reference.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="float32")
    params, config = pretrained.load(tmp_path / "half")
    assert config.dtype == "float32"
    expected = reference_logits(reference, TOKENS, NEAR)
    np.testing.assert_allclose(our_logits(params, config, TOKENS, NEAR), expected, atol=TOLERANCE, rtol=0)
