"""The converter as a user runs it."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from model.tokenizer import Tokenizer
from model.weights import pretrained
from tests.model.weights.test_pretrained import CONFIG, _random

ROOT = Path(__file__).parents[2]


def _convert(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.convert_weights", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_directory_is_converted(tmp_path: Path):
    tree = _random(CONFIG)
    pretrained.export(tree, CONFIG, Tokenizer.train(["go"] * 2, vocab_size=280), tmp_path / "in")
    done = _convert(f"--source={tmp_path / 'in'}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "parameters (llama, float32)" in done.stdout
    jax.tree.map(np.testing.assert_array_equal, pretrained.load(tmp_path / "out")[0], tree)
    assert pretrained.load_tokenizer(tmp_path / "out").stop_ids == (3,)
