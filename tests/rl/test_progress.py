"""The progress display, on a terminal and on a pipe."""

from __future__ import annotations

import io
import math

from rich.console import Console

from rl.progress import Progress

TRAIN = {
    "rollout/success_mean": 0.25, "policy/entropy_mean": 0.5, "aem/alpha_min": 0.75, "aem/alpha_max": 1.5,
    "rollout/tokens_per_s": 12345.0, "time/rollout": 6.0, "time/update": 2.0, "time/iteration": 10.0,
}  # fmt: skip
EVAL = {
    "iteration": 3, "eval/valid_seen_success": 0.5, "eval/valid_seen_success_low": 0.4,
    "eval/valid_seen_success_high": 0.6, "eval/valid_seen_n": 200, "time/eval": 2.0,
}  # fmt: skip


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_lines() -> None:
    out = console(False)
    with Progress(8, start=2, console=out) as progress:
        progress.phase("rollout")
        with progress.phase("update"):
            pass
        progress.message("[brackets] stay")
        progress.update({"iteration": 3, **TRAIN})
        progress.update(EVAL)
        progress.update({"iteration": 4, **TRAIN, "rollout/success_mean": 0.75})
        progress.update({"iteration": 5, "rollout/success_mean": math.nan, "policy/entropy_mean": None})
    assert text(out).splitlines() == [
        "[brackets] stay",
        "[3/8] success 25 % (mean of 10: 25 %), entropy 0.500 nats, alpha 0.75 to 1.50, tokens/s 12,345, 0:50 left",
        "[3/8] eval valid seen 50.0 % [40.0, 60.0] of 200 games",
        "[4/8] success 75 % (mean of 10: 50 %), eval valid seen 50.0 % [40.0, 60.0] of 200 games, entropy 0.500 nats, "
        "alpha 0.75 to 1.50, tokens/s 12,345, 0:40 left",
        "[5/8] eval valid seen 50.0 % [40.0, 60.0] of 200 games, alpha 0.75 to 1.50, tokens/s 12,345, 0:20 left",
    ]


def test_live_panel() -> None:
    out = console(True)
    with Progress(8, console=out) as progress:
        progress.begin(2)
        progress.update({"iteration": 3, **TRAIN})
        progress.update(EVAL)
        progress.phase("rollout")
        progress.message("said")
    last = text(out).rpartition("agentropy")[2]
    for words in (
        "3/8",
        "0:50 left",
        "25 % (mean of 10: 25 %)",
        "50.0 % [40.0, 60.0] of 200 games",
        "0.75 to 1.50",
    ):
        assert words in last
    assert "rollout 60 %  update 20 %  eval 20 %" in last
    assert "said" in text(out)


def test_nothing_known_yet() -> None:
    out = console(True)
    with Progress(0, console=out) as progress:
        progress.update({})
    assert "0/0" in text(out)
