"""The arithmetic around the measurements, the inputs, the figure and what the command refuses; nothing is timed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tools import benchmark
from tools.benchmarks import growth, growth_plot, id_text, install, report, shapes, turns
from tools.benchmarks.report import Case, Record
from tools.benchmarks.shapes import Sizes
from tools.benchmarks.turns import Measured, Ratio

OURS = Measured("agentropy", seconds=[2.0, 4.0, 3.0], cpu_seconds=[4.0, 8.0, 6.0], peak_bytes=500_000_000)
THEIRS = Measured("peer", seconds=[3.0, 8.0], cpu_seconds=[3.0, 8.0], peak_bytes=1_000_000_000, lost="died")
SIZES = Sizes(batch=4, group=2, prompt=8, new=6, length=16)
CASE = Case(
    "generate: small",
    "generate",
    SIZES,
    [OURS, THEIRS],
    shapes.MODELS["small"],
    {"flops_per_s": 1e9, "bytes_per_s": 1e12},
)


def test_order_alternates() -> None:
    assert [turns.order(3, n) for n in range(3)] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]


def test_ratios_are_of_rounds() -> None:
    assert turns.ratio([2.0, 4.0, 3.0], [3.0, 8.0]) == Ratio(1.75, 1.5, 2.0, 2)
    assert turns.ratio([1.0], []) is None


def test_tokens() -> None:
    found = {work: SIZES.tokens(work) for work in shapes.WORKS}
    assert found == {"envs": 24, "generate": 24, "score": 64, "update": 64, "step": 56}


def test_spec_is_the_same_for_all() -> None:
    config = shapes.model("small", vocabulary=64)
    spec, again = (shapes.spec("update", config, SIZES, seed=3) for _ in range(2))
    assert spec == again == json.loads(json.dumps(spec))
    prompts, rows = spec["prompts"], spec["rows"]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3] and {len(p) for p in prompts} == {8}
    assert [row[:8] for row in rows] == prompts and {len(row) for row in rows} == {16}
    assert rows[0] != rows[1] and all(0 <= token < 64 for row in rows for token in row)
    assert spec["rewards"] == [0, 1, 0, 1]
    assert shapes.spec("generate", config, SIZES)["rows"] == []


@pytest.mark.parametrize(
    ("work", "sizes", "message"),
    [
        ("update", {"length": 8}, "length=8 must exceed prompt=8"),
        ("generate", {"new": 1}, "new=1 must be at least 2"),
        ("step", {"prompt": 16_384}, "sequences of 16390 tokens exceed"),
    ],
)
def test_sizes_that_do_not_fit(work: str, sizes: dict[str, int], message: str) -> None:
    one = Sizes(**{"batch": 4, "group": 2, "prompt": 8, "new": 6, "length": 16} | sizes)
    with pytest.raises(ValueError, match=message):
        shapes.spec(work, shapes.model("small"), one)


def test_report() -> None:
    text = Console(width=200, record=True, file=io.StringIO())
    CASE.print(text)
    shown = text.export_text()
    assert "1.75x [1.50, 2.00]" in shown and "0.50x" in shown and "peer is out after 2 rounds: died" in shown
    found = CASE.to_dict()
    ours, theirs = found["contestants"]
    assert ours["median_s"] == 3.0 and ours["tokens_per_s"] == 8.0 and ours["seconds"] == [2.0, 4.0, 3.0]
    assert theirs["median_s"] == 5.5 and found["ratios"]["peer"]["rounds"] == 2
    assert ours["roofline_share"] == pytest.approx(found["flops"] / 1e9 / 3.0, rel=1e-6)


def test_record(tmp_path: Path) -> None:
    machine = report.machine(2)
    assert machine["threads"] == 2 and machine["cpus"] >= 1 and machine["memory_bytes"] > 1e9
    record = Record({"work": "generate"}, machine, cases=[CASE])
    record.write(None)
    record.write(tmp_path / "new" / "x.json")
    held = json.loads((tmp_path / "new" / "x.json").read_text())
    assert held["settings"] == {"work": "generate"} and held["cases"][0]["title"] == "generate: small"


def test_points() -> None:
    found = list(growth.points("update", SIZES, vocabulary=0))
    axes = {name: [p for p in found if p.axis == name] for name in growth.AXES["update"]}
    assert [p.value for p in axes["batch"]] == [1, 2, 4, 8, 16, 32, 64]
    assert [p.sizes.group for p in axes["batch"]] == [1, 2, 2, 2, 2, 2, 2]
    assert {(p.sizes.batch, p.sizes.length) for p in axes["context"]} == {(1, n) for n in growth.CONTEXTS}
    assert [p.vocabulary for p in axes["vocabulary"]] == list(growth.VOCABULARIES)
    assert {
        p.sizes.prompt for p in growth.points("generate", SIZES, vocabulary=0) if p.axis == "context"
    } == {*growth.CONTEXTS}
    for work in growth.AXES:  # every point is a work that can be asked for
        for point in growth.points(work, Sizes(), vocabulary=0):
            if point.vocabulary < 5000:
                shapes.spec(work, shapes.model("small", vocabulary=point.vocabulary), point.sizes)


@pytest.mark.parametrize("work", ["generate", "step"])
def test_figure(tmp_path: Path, work: str) -> None:
    curves = [(point, CASE) for point in growth.points(work, SIZES, vocabulary=0)]
    growth_plot.draw(curves, tmp_path / "x.png", title="x")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_ids_as_text() -> None:
    assert id_text.encode(id_text.decode([0, 17, 4095])) == [0, 17, 4095]


def test_installed_peers_are_found(tmp_path: Path) -> None:
    peer = install.PEERS["trl"]
    assert install.entry(peer, tmp_path) is None
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl" / ".done").touch()
    entry = install.install(peer, tmp_path)
    assert entry.module == "tools.benchmarks.trl_peer"
    assert entry.python == str(tmp_path / "trl" / "bin" / "python")
    assert not install.reachable("https://127.0.0.1:1/x", timeout_s=0.5)


def test_a_failed_install_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        return install.subprocess.CompletedProcess(command, 1, "", "no matching distribution")

    monkeypatch.setattr(install.subprocess, "run", run)
    with pytest.raises(RuntimeError, match="cannot install tunix: no matching distribution"):
        install.install(install.PEERS["tunix"], tmp_path, tell=lambda _: None)
    assert install.entry(install.PEERS["tunix"], tmp_path) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step", "--group=3"], "batch=8 must divide by group=3"),
        (["step", "--group=1"], "--group=1 must be at least 2"),
        (["generate", "--batch=0"], "batch=0 must be at least 1"),
        (["generate", "--repeats=0"], "--repeats=0 must be positive"),
        (["generate", "--warmups=-1"], "--warmups=-1 must not be negative"),
        (["generate", "--threads=100000"], "--threads=100000 exceeds"),
        (["generate", "--model=gpt"], "unknown model='gpt'; known: smollm2-135m, small"),
        (["generate", "--vocabulary=3"], "vocabulary=3 must be at least 16"),
        (["envs", "--plot=x.png"], "--plot is for generate, score, update, step, not for envs"),
        (["peers", "--works=score"], "unknown --works=score; known: generate, update, step"),
        (["peers", "--peers=verl"], "unknown --peers=verl; known: tunix, trl"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(arguments) == 1
    assert f"error: {message}" in capsys.readouterr().err


def test_peers_that_are_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENTROPY_CACHE", str(tmp_path))
    assert benchmark.main(["peers"]) == 1
    assert f"tunix is not installed in {tmp_path / 'peers'}; add --install" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("work", ["generate", "score", "update", "step"])
def test_command(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, whole, at a size where only compilation takes time."""
    monkeypatch.setenv("XLA_FLAGS", "")  # contestants are measured as users run them, on one device
    file = tmp_path / "x.json"
    sizes = ["--batch=4", "--group=2", "--prompt=16", "--new=8", "--length=32", "--vocabulary=64"]
    assert benchmark.main([work, *sizes, "--repeats=2", "--warmups=2", f"--json={file}"]) == 0
    (case,) = json.loads(file.read_text())["cases"]
    (one,) = case["contestants"]
    assert len(one["seconds"]) == 2 and one["compiled"] == [0.0, 0.0] and not one["lost"]
    if work in ("generate", "step"):
        assert one["result"]["tokens"] == 32
