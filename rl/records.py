"""What can be read afterwards: one record a response, and transcripts of whole episodes.

responses/00012.jsonl.gz     a line a response: the row of the response table with what credit made of it
transcripts/train_00012.md   a few episodes to read, with the same as data in train_00012.jsonl.gz for the tools
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# What each response record must say; a record may say more.
RESPONSE_FIELDS = (
    "group",  # episodes of one task draw
    "trajectory",  # number of the episode in the iteration
    "turn",  # number of the response in its episode
    "entropy",  # mean over its tokens, nats
    "surprisal",  # mean of -log p over its tokens, nats
    "alpha",  # AEM's modulation, 1 where it does not act
    "advantage_before",
    "advantage_after",
    "reward",
    "stop",  # why generation ended
    "valid",  # whether the environment could act on it
    "anchor",  # the state it was written in
)


def write_responses(path: str | os.PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes response records, one line each, gzipped; what is not finite becomes null.

    Raises:
      ValueError: if a record lacks one of RESPONSE_FIELDS.
    """
    for number, row in enumerate(rows):
        if missing := [name for name in RESPONSE_FIELDS if name not in row]:
            raise ValueError(f"response record {number} lacks {', '.join(missing)}; it has {', '.join(row)}")
    _write_lines(Path(path), rows)


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the records of a .jsonl.gz file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_transcript(path: str | os.PathLike[str], episodes: Sequence[Mapping[str, Any]]) -> None:
    """Writes episodes as Markdown at `path`, and as data beside it with the suffix .jsonl.gz.

    An episode is {"task", "goal", "success", "stop", "return", "turns"}; a turn is {"prompt", "response", "action",
    "valid", "reward", "stop"} and, where known, "entropy", "alpha", "advantage_before", "advantage_after" and the mark
    "outlier" with "normalised" (H_n) and "aware" (R_TA; 0 where no block held the response). Only "turns", "prompt" and
    "response" are required.
    """
    path = Path(path)
    lines = [line for number, episode in enumerate(episodes) for line in _episode(number, episode)]
    _replace(path, ("\n".join(lines) + "\n").encode())
    _write_lines(path.with_suffix(".jsonl.gz"), episodes)


def numbers(turn: Mapping[str, Any]) -> str:
    """Returns the measured values of a turn in one line."""
    words = []
    for name, label in (("entropy", "entropy"), ("surprisal", "surprisal"), ("alpha", "alpha")):
        if turn.get(name) is not None:
            words.append(f"{label} {turn[name]:.3f}")
    before, after = turn.get("advantage_before"), turn.get("advantage_after", turn.get("advantage"))
    if after is not None:
        words.append(
            f"advantage {after:+.3f}" if before is None else f"advantage {before:+.3f} -> {after:+.3f}"
        )
    if turn.get("reward") is not None:
        words.append(f"reward {turn['reward']:+.2f}")
    if turn.get("stop"):
        words.append(f"ended by {turn['stop']}")
    if turn.get("outlier"):
        aware = f", R_TA {turn['aware']:.3f}" if turn.get("aware") else ""
        words.append(f"OUTLIER (H_n {turn['normalised']:+.2f}{aware})")
    if not turn.get("valid", True):
        words.append("INVALID ACTION")
    return ", ".join(words)


def headline(episode: Mapping[str, Any]) -> str:
    """Returns how an episode ended, in one line."""
    words = ["success" if episode.get("success") else "failure", f"{len(episode['turns'])} turns"]
    if episode.get("return") is not None:
        words.append(f"return {episode['return']:+.2f}")
    if episode.get("stop") and episode["stop"] != "success":
        words.append(f"stopped by {episode['stop']}")
    invalid = sum(not turn.get("valid", True) for turn in episode["turns"])
    return ", ".join(words + ([f"{invalid} invalid"] if invalid else []))


def _episode(number: int, episode: Mapping[str, Any]) -> Iterable[str]:
    yield f"# Episode {number + 1}: {headline(episode)}\n"
    if episode.get("goal"):
        yield f"Goal: **{episode['goal']}**  "
    if episode.get("task"):
        yield f"Task: `{episode['task']}`\n"
    for count, turn in enumerate(episode["turns"]):
        yield f"## Turn {count + 1}\n"
        yield f"{_fenced(turn['prompt'])}\n"
        yield f"Response:\n\n{_fenced(turn['response'])}\n"
        if turn.get("action"):
            yield f"Action: `{turn['action']}`  "
        if measured := numbers(turn):
            yield f"*{measured}*\n"


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks inside."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(_finite(row), allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    # mtime=0: the same records give the same bytes, so that two runs can be compared by their files.
    _replace(path, gzip.compress(text.encode(), compresslevel=5, mtime=0))


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
