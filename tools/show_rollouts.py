"""Shows the episodes that a run wrote down.

python -m tools.show_rollouts runs/alfworld_aem                       the last iteration's
python -m tools.show_rollouts runs/alfworld_aem --iteration=12 --failure --invalid
python -m tools.show_rollouts runs/alfworld_aem --responses           a table of every response of that iteration
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rl import records


def files(directory: Path, iteration: int | None) -> list[Path]:
    """Returns the record files of an iteration, or of the last one that has any; [] if there is none."""
    numbered: dict[int, list[Path]] = {}
    for path in sorted(directory.glob("*.jsonl.gz")):
        if match := re.search(r"(\d+)$", path.name.removesuffix(".jsonl.gz")):
            numbered.setdefault(int(match[1]), []).append(path)
    return numbered.get(max(numbered, default=0) if iteration is None else iteration, [])


def wanted(episode: Mapping[str, Any], *, success: bool | None, invalid: bool) -> bool:
    """True for an episode that ended as asked (None: either way) and, if `invalid`, has an invalid action."""
    if success is not None and bool(episode.get("success")) != success:
        return False
    return not invalid or any(not turn.get("valid", True) for turn in episode["turns"])


def show(console: Console, episode: Mapping[str, Any], *, full: bool) -> None:
    """Prints one episode; without `full`, of each prompt only what the one before did not say."""
    colour = "green" if episode.get("success") else "red"
    console.rule(Text(records.headline(episode), style=f"bold {colour}"))
    for label in ("goal", "task"):
        if episode.get(label):
            console.print(Text(f"{label}: {episode[label]}", style="bold" if label == "goal" else "dim"))
    before: set[str] = set()
    for number, turn in enumerate(episode["turns"]):
        lines = turn["prompt"].splitlines()
        new = lines if full or not number else [line for line in lines if line not in before]
        before |= set(lines)
        console.print(
            Panel(Text("\n".join(new)), title=f"turn {number + 1}", title_align="left", border_style="dim")
        )
        console.print(Text(turn["response"], style="" if turn.get("valid", True) else "red"))
        console.print(Text(records.numbers(turn), style="dim italic"))


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Returns the response records as a table."""
    columns = (
        "group",
        "trajectory",
        "turn",
        "entropy",
        "alpha",
        "advantage_before",
        "advantage_after",
        "reward",
    )
    out = Table(title=title, title_justify="left")
    for name in columns:
        out.add_column(name.replace("_", " "), justify="right")
    out.add_column("stop")
    out.add_column("action or anchor", overflow="ellipsis", no_wrap=True)
    for row in rows:
        values = (row.get(name) for name in columns)
        cells = [
            f"{value:.3f}" if isinstance(value, float) else str("" if value is None else value)
            for value in values
        ]
        words = Text(str(row.get("action") or row["anchor"]).replace("\n", " "))
        out.add_row(*cells, str(row["stop"]), words, style="" if row["valid"] else "red")
    return out


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--iteration", type=int, help="the last one by default")
    outcome = parser.add_mutually_exclusive_group()
    outcome.add_argument("--success", action="store_true", help="successful episodes only")
    outcome.add_argument("--failure", action="store_true", help="failed episodes only")
    parser.add_argument(
        "--invalid", action="store_true", help="only episodes or responses with an invalid action"
    )
    parser.add_argument("--limit", type=int, default=0, help="how many to show; 0 = all")
    parser.add_argument("--full", action="store_true", help="whole prompts")
    parser.add_argument(
        "--responses", action="store_true", help="the table of responses in place of episodes"
    )
    options = parser.parse_args(argv)
    directory = options.run / ("responses" if options.responses else "transcripts")
    paths = files(directory, options.iteration)
    if not paths:
        asked = "" if options.iteration is None else f" of iteration {options.iteration}"
        sys.exit(f"no records{asked} in {directory}")
    success = True if options.success else False if options.failure else None
    console = Console()
    for path in paths:
        rows = records.read_lines(path)
        if options.responses:
            rows = [row for row in rows if success is None or bool(row.get("success")) == success]
            rows = [row for row in rows if not (options.invalid and row["valid"])]
            console.print(table(rows[: options.limit or None], path.name.removesuffix(".jsonl.gz")))
            continue
        rows = [row for row in rows if wanted(row, success=success, invalid=options.invalid)]
        console.print(Text(f"{path.name.removesuffix('.jsonl.gz')}: {len(rows)} episodes", style="bold cyan"))
        for episode in rows[: options.limit or None]:
            show(console, episode, full=options.full)


if __name__ == "__main__":
    main()
