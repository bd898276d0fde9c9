"""Directories of safetensors: one file or shards, bfloat16, and what is said when parts are absent."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from model.weights import safetensors

TENSORS = [(f"t{i}", np.full((10, 10), i, np.float32)) for i in range(5)]  # 400 bytes each


@pytest.mark.parametrize(("shard_bytes", "files"), [(10_000, 1), (800, 3), (399, 5)])
def test_shards_are_bounded_and_read_back(tmp_path: Path, shard_bytes: int, files: int):
    safetensors.write(iter(TENSORS), tmp_path, shard_bytes=shard_bytes)
    written = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(written) == files
    if files == 1:
        assert written == ["model.safetensors"]
    else:
        assert written[0] == f"model-00001-of-{files:05d}.safetensors"
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == 2000
        assert set(index["weight_map"]) == {"t0", "t1", "t2", "t3", "t4"}
    with safetensors.Reader(tmp_path) as reader:
        assert reader.names() == {"t0", "t1", "t2", "t3", "t4"}
        for name, array in TENSORS:
            np.testing.assert_array_equal(reader.read(name), array)


def test_bfloat16_keeps_its_bits(tmp_path: Path):
    array = np.array([1.0, -0.333, 1e30], ml_dtypes.bfloat16)
    safetensors.write([("x", array)], tmp_path, shard_bytes=100)
    with safetensors.Reader(tmp_path) as reader:
        assert reader.read("x").dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(reader.read("x"), array)


def test_absent_files_are_named(tmp_path: Path):
    with pytest.raises(
        FileNotFoundError, match=r"neither model.safetensors nor model.safetensors.index.json"
    ):
        safetensors.Reader(tmp_path)
    safetensors.write(iter(TENSORS), tmp_path, shard_bytes=800)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-00002-of-00003\.safetensors"):
        safetensors.Reader(tmp_path)
