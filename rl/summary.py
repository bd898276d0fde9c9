"""The end of a run: the plot, and one line that says where everything is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from rl import evaluation, records, report
from rl.trainer import Parts


def finish(parts: Parts, *, draw: Callable[[Any, Any], Any]) -> None:
    """Draws the run (`draw(metrics, png)`) and says what came of it and where everything lies."""
    workdir, progress = parts.workdir, parts.progress
    plot = workdir / "plot.png"
    draw(workdir / "metrics.jsonl", plot)
    for line in outcome(workdir):
        progress.message(line)
    progress.message(
        f"done: checkpoint {workdir / 'checkpoints'}, metrics {workdir / 'metrics.jsonl'}, "
        f"TensorBoard events {workdir / 'tensorboard'}, transcripts {workdir / 'transcripts'}, plot {plot}"
    )


def outcome(workdir: Any) -> list[str]:
    """Success before and after, a line a split."""
    evals = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    evals = [row for row in evals if any(key.startswith("eval/") and key.endswith("_success") for key in row)]
    if not evals:
        return []
    lines = []
    splits = [key[len("eval/") : -len("_success")] for key in evals[0] if key.endswith("_success")]
    for split in splits:
        before, after = ((row, f"eval/{split}") for row in (evals[0], evals[-1]))
        lines.append(f"{split}: success {_interval(*before)} -> {_interval(*after)}")
    return lines


def _interval(row: dict[str, Any], key: str) -> str:
    return (
        f"{row[key + '_success']:.1%} [{row[key + '_success_low']:.1%}, {row[key + '_success_high']:.1%}] "
        f"(iteration {row['iteration']}, n={row[key + '_n']})"
    )


def evaluate(config: Any, parts: Parts) -> None:
    """`--mode=eval`: the last checkpoint over every game of each split; written to eval.json."""
    results: dict[str, Any] = {"iteration": parts.iteration}
    for split in config.eval.splits:
        tasks = evaluation.fixed_tasks(parts.tasks[split], 0)
        with parts.progress.bar(f"eval {split}", len(tasks)) as advance:
            played = evaluation.evaluate(
                parts.eval_rollout,
                parts.state.params,
                tasks,
                seed=config.seed,
                on_episode=lambda _, done=advance: done(),
            )
        results |= evaluation.summary(played, split)
        records.write_transcript(
            parts.workdir / "transcripts" / f"eval_{split}_full.md",
            report.transcripts(played[: config.log.transcripts]),
        )
        parts.progress.message(f"{split}: success {_interval(results, f'eval/{split}')}")
    path = parts.workdir / "eval.json"
    path.write_text(json.dumps(results, indent=1))
    parts.progress.message(f"written to {path}")
