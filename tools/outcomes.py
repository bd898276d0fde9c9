"""What a run directory says of its run: how far it is, and how it ended."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import arguments
from rl import metrics

_SEED = re.compile(r"(?P<method>.+)-seed=?(?P<seed>\d+)")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Read from `config.json` and `metrics.jsonl` alone, and without their times, so that it repeats as runs do."""

    # new | unfinished | finished | other (a run of another config is there) | failed (set by who started it)
    state: str
    iteration: int = -1  # the last one that was written; -1 = none
    success: Mapping[str, float] = dataclasses.field(
        default_factory=dict
    )  # share, by split; the last evaluation
    games: Mapping[str, int] = dataclasses.field(default_factory=dict)  # that the share is taken over
    entropy: float | None = None  # nats, mean over the responses of the last training iteration
    changed: tuple[str, ...] = ()  # keys that differ from the config that was asked for


def read(directory: Path, config: Any = None) -> Outcome:
    """Returns the outcome of a run directory.

    It is finished when its last iteration has been trained and evaluated on every split. With a `config`, what the
    directory holds must have been run with exactly this one.
    """
    path, held = directory / "metrics.jsonl", directory / "config.json"
    rows = metrics.read(path) if path.is_file() else []
    if not held.is_file():
        return _outcome(rows, iterations=None, splits=None)
    if config is not None:
        changed = tuple(arguments.diff(arguments.from_json(held.read_text()), config))
        if changed:
            return dataclasses.replace(Outcome("other", changed=changed), iteration=_last(rows))
    run = json.loads(held.read_text())
    return _outcome(rows, iterations=run["train"]["iterations"], splits=run["eval"]["splits"])


def _outcome(
    rows: Sequence[Mapping[str, Any]], *, iterations: int | None, splits: Sequence[str] | None
) -> Outcome:
    """Without a config.json (`iterations` is None) the last row counts as the last of the run."""
    if not rows:
        return Outcome("new")
    last = rows[-1]
    found = (re.fullmatch(r"eval/(.+)_success", key) for row in rows for key in row)
    names = splits if splits is not None else list(dict.fromkeys(match[1] for match in found if match))
    # A share is null where every game failed: there is nothing to report, and the run is not finished.
    evaluated = [row for row in rows if names and all(_number(row, f"eval/{name}_success") for name in names)]
    done = bool(evaluated) and evaluated[-1] is last and iterations in (None, last["iteration"])
    entropies = [row["policy/entropy_mean"] for row in rows if _number(row, "policy/entropy_mean")]
    final = evaluated[-1] if evaluated else {}
    return Outcome(
        "finished" if done else "unfinished",
        iteration=last["iteration"],
        success={name: final[f"eval/{name}_success"] for name in names if final},
        games={name: final[f"eval/{name}_n"] for name in names if final},
        entropy=entropies[-1] if entropies else None,
    )


def _number(row: Mapping[str, Any], key: str) -> bool:
    return key in row and row[key] is not None


def _last(rows: Sequence[Mapping[str, Any]]) -> int:
    return rows[-1]["iteration"] if rows else -1


def method_and_seed(directory: str | Path) -> tuple[str, int | None]:
    """Splits a run directory's name: "aem-seed3" and "aem-seed=3" are ("aem", 3), others have no seed."""
    name = Path(directory).name
    match = _SEED.fullmatch(name)
    return (match["method"], int(match["seed"])) if match else (name, None)


def by_method(directories: Iterable[Path]) -> dict[str, list[Path]]:
    """Run directories by method, methods in the order of their first directory, seeds ascending."""
    groups: dict[str, list[Path]] = {}
    for directory in directories:
        groups.setdefault(method_and_seed(directory)[0], []).append(directory)
    return {name: sorted(group, key=_by_seed) for name, group in groups.items()}


def _by_seed(directory: Path) -> tuple[int, str]:
    seed = method_and_seed(directory)[1]
    return (-1 if seed is None else seed), str(directory)
