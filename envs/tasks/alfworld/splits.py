"""Which games a data directory offers, by the rules of the release (alfworld's AlfredTWEnv)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

LAYOUT = "json_2.1.1"
GAME = "game.tw-pddl"

ALIASES = {
    "place": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
TASK_TYPES = tuple(ALIASES.values())

# A quote inside a JSON string is escaped, so this finds the key and nothing else, without parsing 80 kB a game.
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true\b')


def root(data_dir: str) -> Path:
    """Returns the directory of the splits: `data_dir`/json_2.1.1, or `data_dir` itself when that is one."""
    if not data_dir:
        raise ValueError("data_dir is empty; set config.env.data_dir or ALFWORLD_DATA")
    path = Path(data_dir).expanduser()
    path = path if path.name == LAYOUT else path / LAYOUT
    if not path.is_dir():
        raise ValueError(f"{data_dir=} has no directory {LAYOUT}; set config.env.data_dir or ALFWORLD_DATA")
    return path


def published_names(task_types: Collection[str]) -> tuple[str, ...]:
    """Returns the published names of task types given by name or alias; () means all six."""
    if unknown := [name for name in task_types if name not in ALIASES and name not in TASK_TYPES]:
        raise ValueError(
            f"unknown task_types {unknown}; known: {', '.join(ALIASES)} or {', '.join(TASK_TYPES)}"
        )
    return tuple(ALIASES.get(name, name) for name in task_types) or TASK_TYPES


def task_type(game_dir: Path) -> str:
    """Returns the task type of a game: the first word of its folder, or what its traj_data.json says."""
    prefix = game_dir.parent.name.split("-")[0]
    if prefix in TASK_TYPES:
        return prefix
    try:
        return json.loads((game_dir / "traj_data.json").read_text(encoding="utf-8"))["task_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def list_games(data_dir: str, split: str, task_types: Collection[str]) -> list[str]:
    """Returns the sorted ids ("train/<task>/<trial>") of the games of a split that the release would play.

    Left out, as by AlfredTWEnv: games with "movable" or "Sliced" in the path (below the data directory, not in its own
    name), games that are not marked solvable, games of other types.
    """
    base = root(data_dir)
    wanted = published_names(task_types)
    if not (base / split).is_dir() or split in ("", ".", ".."):
        known = ", ".join(sorted(path.name for path in base.iterdir() if path.is_dir()))
        raise ValueError(f"no {split=} in {base}; there are: {known}")
    found = []
    for path in (base / split).glob(f"**/{GAME}"):
        name = path.parent.relative_to(base).as_posix()
        if "movable" in name or "Sliced" in name or task_type(path.parent) not in wanted:
            continue
        if _SOLVABLE.search(path.read_bytes()):
            found.append(name)
    return sorted(found)


def game_path(data_dir: str, task_id: str) -> Path:
    """Returns the file of a game; ValueError for an id that is not below the data directory."""
    base = root(data_dir)
    path = base / task_id / GAME
    if ".." in Path(task_id).parts or Path(task_id).is_absolute() or not path.is_file():
        raise ValueError(f"no game {task_id!r} in {base}")
    return path
