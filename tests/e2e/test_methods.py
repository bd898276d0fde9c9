"""Methods whose paths differ from GRPO's, as a user runs them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from rl.checkpoint import Checkpoints
from tests.e2e.tiny import ROOT, TINY, environment

pytestmark = pytest.mark.slow

# A poor clone is near uniform: its entropies differ by less than AEM's guard.
SHORT = ["--config.train.iterations=1", "--config.credit.aem.threshold=0.0"]
# method -> a metric that only its own path writes, and what holds of it
METHODS = {
    "ppo": ("objective/value_loss", lambda value: value > 0),
    "dapo": (
        "selection/rounds",
        lambda value: value == 2,
    ),  # a poor clone: no group is live, so both tries are used
    "gigpo:quick,aem": ("aem/alpha_max", lambda value: value > 1),
    "empg": (
        "credit/base_abs_mean",
        lambda value: value > 0,
    ),  # the clarity bonus moves groups of equal returns
    "gspo": ("objective/ratio_mean", lambda value: abs(value - 1) < 1e-3),
    "grpopp": ("selection/groups_rejected", lambda value: value >= 2),
    "stapo": ("attribution/reward", lambda value: value > 0),
}
# The fences at the quartiles: half of the responses are located.
MORE = {"stapo": ["--config.credit.outliers.fence=0.0"]}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_runs(method: str, cache: Path, tmp_path: Path) -> None:
    name, _, text = method.partition(":")
    config = f"--config=configs/alfworld_{name}.py:{text or 'quick'}"
    command = [
        sys.executable,
        "main.py",
        config,
        f"--workdir={tmp_path}",
        *TINY,
        *SHORT,
        *MORE.get(method, []),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    key, holds = METHODS[method]
    assert holds(row[key]), row[key]
    assert math.isfinite(row["objective/loss"])
    kept = Checkpoints(tmp_path / "checkpoints")
    step = kept.latest_step()
    assert step == 1
    assert kept.extra(step)["task_cursor"] == row["selection/groups_sampled"]
