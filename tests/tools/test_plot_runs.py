"""Plots: files that are pictures, from whole runs, the first iterations of one, and groups of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl.metrics import MetricsWriter, wilson
from tools.plot_runs import main, plot_run, smooth


def make_run(path: Path, iterations: int) -> Path:
    with MetricsWriter(path, tensorboard=False) as writer:
        for i in range(iterations):
            row = {"rollout/success_mean": i / 20, "policy/entropy_mean": 1 / (1 + i), "aem/alpha_min": 0.5}
            row = row | {"aem/alpha_max": 1.5} if i else {}
            if i % 4 == 0:
                low, high = wilson(i, 20)
                for split in ("valid_seen", "valid_unseen"):
                    name = f"eval/{split}"
                    row |= {f"{name}_success": i / 20, f"{name}_n": 20}
                    row |= {f"{name}_success_low": low, f"{name}_success_high": high}
            writer.write(i, row)
    return writer.path


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


@pytest.mark.parametrize("iterations", [1, 13])
def test_one_run(tmp_path: Path, iterations: int) -> None:
    plot_run(make_run(tmp_path / "run", iterations), tmp_path / "out" / "plot.png")
    assert is_picture(tmp_path / "out" / "plot.png")


def test_no_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="no metrics"):
        plot_run(tmp_path / "metrics.jsonl", tmp_path / "plot.png")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, iterations in (("a1", 9), ("a2", 6), ("b", 9)):
        make_run(tmp_path / name, iterations)
    main(
        [
            f"aem={tmp_path}/a1",
            f"{tmp_path}/a2",
            f"grpo={tmp_path}/b/metrics.jsonl",
            f"--out={tmp_path}/ab.png",
        ]
    )
    main([str(tmp_path / "a1")])
    assert capsys.readouterr().out.split() == [f"{tmp_path}/ab.png", f"{tmp_path}/a1/plot.png"]
    assert is_picture(tmp_path / "ab.png")
    with pytest.raises(SystemExit, match="no metrics at"):
        main([str(tmp_path / "none")])


def test_smooth() -> None:
    np.testing.assert_allclose(smooth(np.array([0.0, 3.0, 6.0, 9.0]), 3), [1.5, 3.0, 6.0, 7.5])
    np.testing.assert_allclose(smooth(np.array([1.0, 2.0]), 1), [1.0, 2.0])
    assert smooth(np.array([]), 5).size == 0
