"""Sweeps on a stand-in for main.py: what is skipped, what goes on, what fails, and the table of all of it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import run_sweep

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SWEEP = f"""
from configs.sweeps.cell import cells
from configs.sweeps.combinators import seeds

def get_sweep(text=""):
    methods = {{"low": {{}}, "high": {{"level": 2.0}}, **({{"bad": {{"fail": True}}}} if text == "bad" else {{}})}}
    return cells({str(HERE / "fake_config.py")!r}, methods, seeds(2))
"""
# Success (3 + seed) / 8 and entropy level / (3 + seed): means 0.4375, 7 / 24 and 7 / 12; t(1) = 12.7062.
ROWS = (
    "| low | 2 | 0 | 0 | 43.8 ± 8.8 | [0.0, 100.0] | 8 | 0.2917 ± 0.0589 | [-0.2378, 0.8211] |\n"
    "| high | 2 | 0 | 0 | 43.8 ± 8.8 | [0.0, 100.0] | 8 | 0.5833 ± 0.1179 | [-0.4755, 1.6422] |\n"
)


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    (tmp_path / "sweep.py").write_text(SWEEP)
    return str(tmp_path / "sweep.py")


def words(sweep: str, workdir: Path, *more: str) -> list[str]:
    return [f"--sweep={sweep}", f"--workdir={workdir}", f"--program={HERE / 'fake_main.py'}", *more]


def run(sweep: str, workdir: Path, *more: str) -> object:
    with pytest.raises(SystemExit) as ended:
        run_sweep.main(words(sweep, workdir, *more))
    return ended.value.code


def results(workdir: Path) -> list[bytes]:
    return [(workdir / name).read_bytes() for name in ("results.csv", "results.md")]


def starts(workdir: Path) -> dict[str, str]:
    """At which iteration each cell was started, a digit a start."""
    return {path.parent.name: path.read_text().replace("\n", "") for path in workdir.glob("*/starts")}


def test_stopped_in_the_middle_and_resumed(
    sweep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(sweep, whole, "--parallel=2") == 0
    assert ROWS.encode() in results(whole)[1]
    assert set(starts(whole).values()) == {"0"} and len(starts(whole)) == 4
    parts.mkdir()
    assert run(sweep, parts, "--filter=low-seed1") == 0  # what is finished must be left alone
    (parts / "hold").touch()
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.run_sweep", *words(sweep, parts, "--parallel=2")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    running = ("low-seed0", "high-seed0")
    until = time.monotonic() + 60
    while time.monotonic() < until and not all(
        (path := parts / name / "log.txt").exists() and "iteration 1" in path.read_text() for name in running
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "The same command goes on" in output
    for name in running:  # they saved and ended
        assert (parts / name / "log.txt").read_text().endswith("stopped\n")
    (parts / "hold").unlink()
    capsys.readouterr()
    assert run(sweep, parts, "--parallel=2") == 0
    assert "low-seed0: was at iteration 1, goes on from its last checkpoint" in capsys.readouterr().out
    assert starts(parts) == {"low-seed0": "02", "low-seed1": "0", "high-seed0": "02", "high-seed1": "0"}
    assert results(parts) == results(whole)


def test_a_failed_cell_is_told_and_left_out(
    sweep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{sweep}:bad", tmp_path / "out", "--parallel=3") == 1
    printed = capsys.readouterr().out
    assert "bad-seed0 failed after iteration 1: exit status 1" in printed
    assert "RuntimeError: the learner broke" in printed
    assert "4 of 6 cells are finished" in printed
    table, text = (part.decode() for part in results(tmp_path / "out"))
    assert "bad-seed1,bad,1,failed,,,,\n" in table and "low-seed0,low,0,finished,3,0.375,8,0.3333" in table
    assert f"{ROWS}| bad | 0 | 2 | 0 | none | none | none | none | none |\n" in text
    assert "Failed: bad-seed0, bad-seed1." in text


def test_filter_and_dry_run(sweep: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(sweep, out, "--filter=*-seed1", "--filter=low-*", "--dry_run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ["low-seed0: starts", "low-seed1: starts", "high-seed1: starts"] and not out.exists()
    command = shlex.split(lines[5])
    assert command[2:] == [
        f"--config={HERE / 'fake_config.py'}:seed=1",
        "--config.level=2.0",
        f"--workdir={out}/high-seed1",
    ]
    assert run(sweep, out, "--filter=low-seed0") == 0
    (out / "low-seed1").mkdir()
    (out / "low-seed1" / "config.json").write_text((out / "low-seed0" / "config.json").read_text())
    capsys.readouterr()
    assert run(sweep, out, "--dry_run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == [
        "low-seed0: is finished",
        "low-seed1: another config is there, seed differ",
        "high-seed0: starts",
        "high-seed1: starts",
    ]
    assert b"| low | 1 | 0 | 1 | 37.5 |" in results(out)[1]


def test_refused(sweep: str, tmp_path: Path) -> None:
    def error(*given: str) -> str:
        with pytest.raises(SystemExit) as ended:
            run_sweep.main([*given, f"--workdir={tmp_path / 'out'}"])
        return str(ended.value.code)

    (tmp_path / "empty.py").write_text("")
    (tmp_path / "typo.py").write_text(SWEEP.replace('"level"', '"levle"'))
    assert "there is no file" in error("--sweep=none.py")
    assert "has no get_sweep" in error(f"--sweep={tmp_path}/empty.py")
    assert "matches none of 4 cells" in error(f"--sweep={sweep}", "--filter=aem*")
    assert "no key 'levle'. Did you mean 'level'?" in error(f"--sweep={tmp_path}/typo.py")
    assert "there are" in error(f"--sweep={sweep}", f"--threads_per_cell={(os.cpu_count() or 1) + 1}")
    assert "must be KEY=VALUE" in error(f"--sweep={sweep}", "--launcher=slurm", "--slurm", "gpus")
    assert not (tmp_path / "out").exists()
