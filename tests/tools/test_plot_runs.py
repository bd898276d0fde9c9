"""Plots: files that are pictures, from whole runs and the first iterations of one; how words become groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.metrics import MetricsWriter, wilson
from tools.plot_runs import group, main, plot_run


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
    with pytest.raises(SystemExit, match="no metrics at"):
        main([str(tmp_path / "none")])


def test_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two methods of two seeds: the last evaluations are 8 of 20 games and 4 of 20; t(1) = 12.706."""
    for name, iterations in (("aem-seed0", 9), ("aem-seed1", 5), ("grpo-seed0", 9), ("grpo-seed1", 9)):
        make_run(tmp_path / name, iterations)
    main([f"--runs={tmp_path}/*-seed*", "--baseline=grpo"])
    assert is_picture(tmp_path / "plot.png")
    text = (tmp_path / "plot.md").read_text()
    assert capsys.readouterr().out == f"{text}\n{tmp_path}/plot.png\n"
    assert (
        "| aem | 2 | 0 | 0 | 30.0 ± 14.1 | [0.0, 100.0] | 20 | 30.0 ± 14.1 | [0.0, 100.0] | 20 "
        "| 0.1556 ± 0.0629 | [-0.4092, 0.7203] |\n"
        "| grpo | 2 | 0 | 0 | 40.0 ± 0.0 | [40.0, 40.0] | 20 | 40.0 ± 0.0 | [40.0, 40.0] | 20 "
        "| 0.1111 ± 0.0000 | [0.1111, 0.1111] |\n"
    ) in text
    with pytest.raises(SystemExit, match="none of aem, grpo"):
        main([f"--runs={tmp_path}/*-seed*", "--baseline=gspo"])


def test_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a1", "a2", "b", "aem-seed=0", "aem-seed=1"):
        make_run(tmp_path / name, 1)
    monkeypatch.chdir(tmp_path)

    def named(*words: str) -> dict[str, list[str]]:
        return {label: [str(path.parent) for path in paths] for label, paths in group(words).items()}

    assert named("aem=a1", "a2", "grpo=b/metrics.jsonl") == {"aem": ["a1", "a2"], "grpo": ["b"]}
    assert named("a1", "b") == {"a1": ["a1"], "b": ["b"]}
    # Directories whose own names hold a "=".
    assert named("aem-seed=1", "aem-seed=0") == {"aem": ["aem-seed=1", "aem-seed=0"]}
    assert named("x=aem-seed=1", "a*") == {"x": ["aem-seed=1", "a1", "a2", "aem-seed=0", "aem-seed=1"]}
    assert named("*-seed*") == {"aem": ["aem-seed=0", "aem-seed=1"]}
