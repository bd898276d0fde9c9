"""The program as a user runs it: a quick run leaves everything it promises, and goes on bit for bit after kill -9."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl.checkpoint import Checkpoints
from rl.records import RESPONSE_FIELDS, read_lines
from tests.e2e.tiny import ROOT, TINY, environment

pytestmark = pytest.mark.slow


def command(workdir: Path, *more: str) -> list[str]:
    config = "--config=configs/alfworld_aem.py:quick"
    return [sys.executable, "main.py", config, f"--workdir={workdir}", *TINY, *more]


def run(workdir: Path, cache: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(workdir, *more),
        cwd=ROOT,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def rows(workdir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def state(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Every saved array by name, read without knowing the tree."""
    import orbax.checkpoint as ocp

    path = Checkpoints(workdir / "checkpoints").path(step) / "state"
    restored = ocp.PyTreeCheckpointer().restore(path)
    import jax

    return {jax.tree_util.keystr(k): np.asarray(v) for k, v in jax.tree_util.tree_leaves_with_path(restored)}


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("whole")
    done = run(workdir, cache, "--config.train.iterations=6", "--config.train.checkpoint_every=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "done: checkpoint" in done.stdout
    return workdir


def test_a_run_leaves_what_it_promises(whole: Path) -> None:
    assert (whole / "plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert list((whole / "tensorboard").glob("events*")) or list(whole.glob("**/events*"))
    assert Checkpoints(whole / "checkpoints").latest_step() == 6
    assert (Checkpoints(whole / "checkpoints").tokenizer_path(6) / "tokenizer.json").exists()
    metrics = rows(whole)
    assert [row["iteration"] for row in metrics] == list(range(7))
    assert {"eval/valid_seen_success", "eval/valid_seen_n"} <= metrics[0].keys()
    assert all(0 <= row["policy/logp_gap_max"] < 1e-4 for row in metrics[1:])
    records = read_lines(whole / "responses" / "00001.jsonl.gz")
    assert len(records) == metrics[1]["credit/responses"]
    assert all(set(RESPONSE_FIELDS) <= record.keys() for record in records)
    transcript = next((whole / "transcripts").glob("train_*.md")).read_text()
    assert "goal:" in transcript


def test_killed_run_repeats_the_whole_one(whole: Path, cache: Path, tmp_path: Path) -> None:
    """Bug 19: 3 iterations + kill -9 + 3 iterations = 6 iterations, bit for bit; no worker outlives the kill."""
    arguments = ("--config.train.iterations=6", "--config.train.checkpoint_every=3")
    process = subprocess.Popen(
        command(tmp_path, *arguments),
        cwd=ROOT,
        env=environment(cache),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 500
    while time.monotonic() < deadline and process.poll() is None:
        if (tmp_path / "metrics.jsonl").exists() and len(
            rows(tmp_path)
        ) >= 5:  # in the middle of the second half
            break
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = children.read_text().split() if children.exists() else []
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert workers, "the run had environment workers"
    for worker in workers:
        until = time.monotonic() + 20
        while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
            time.sleep(0.1)
        assert not Path(f"/proc/{worker}").exists(), "an environment worker outlived its trainer"
    assert Checkpoints(tmp_path / "checkpoints").latest_step() == 3
    done = run(tmp_path, cache, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming after iteration 3" in done.stdout
    one, two = state(whole, 6), state(tmp_path, 6)
    assert one.keys() == two.keys() and len(one) > 30
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    timeless = [{k: v for k, v in row.items() if "time" not in k and "per_s" not in k} for row in rows(whole)]
    again = [{k: v for k, v in row.items() if "time" not in k and "per_s" not in k} for row in rows(tmp_path)]
    assert timeless == again


def test_more_iterations_resume(whole: Path, cache: Path) -> None:
    done = run(whole, cache, "--config.train.iterations=7", "--config.train.checkpoint_every=3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["iteration"] for row in rows(whole)] == list(range(8))


def test_another_config_is_refused(whole: Path, cache: Path) -> None:
    done = run(whole, cache, "--config.credit.aem.lam=2.0")
    assert done.returncode != 0
    assert "holds a run with another config: credit.aem.lam" in done.stderr


def test_eval_mode(whole: Path, cache: Path) -> None:
    done = run(
        whole, cache, "--config.train.iterations=7", "--config.train.checkpoint_every=3", "--mode=eval"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((whole / "eval.json").read_text())
    assert result["eval/valid_seen_n"] == 8 and result["iteration"] == 7


def test_sigterm_saves_and_exits(cache: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "--config.train.iterations=50", "--config.train.checkpoint_every=50"),
        cwd=ROOT,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 500
    while time.monotonic() < deadline and process.poll() is None:
        if (tmp_path / "metrics.jsonl").exists() and len(rows(tmp_path)) >= 3:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "The same command goes on" in output
    assert (Checkpoints(tmp_path / "checkpoints").latest_step() or 0) >= 2


def test_misspelt_key() -> None:
    done = subprocess.run(
        [sys.executable, "main.py", "--config=configs/alfworld_aem.py:quick", "--config.credit.aem.lamda=2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "Did you mean" in done.stderr and "credit.aem.lam" in done.stderr
