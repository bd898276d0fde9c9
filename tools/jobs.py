"""A command that fills a directory, and what a launcher tells of it.

A job's directory is locked for as long as a process of it lives, also when the launcher that started it was killed: a
second launcher waits for it instead of running the command again beside it.
"""

from __future__ import annotations

import collections
import dataclasses
import fcntl
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Protocol


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    command: Sequence[str]
    directory: Path
    finished: Callable[[], bool] = dataclasses.field(compare=False)  # by what the command itself wrote there

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"


class Watch(Protocol):
    """Told by a launcher, from one thread."""

    def started(self, job: Job) -> None: ...

    def ended(self, job: Job, why: str) -> None:
        """`why` is how the command ended, "" where it did not have to run."""
        ...

    def tick(self, running: Sequence[Job]) -> None:
        """Several times a second."""
        ...


class Stopped(Exception):
    """A signal ended the launch; what was running has been told to save and has ended."""

    def __init__(self, number: int):
        super().__init__(f"stopped by signal {number}")
        self.number = number


def lock(directory: Path, *, wait: bool) -> IO[bytes] | None:
    """Locks a directory until the returned file is closed here and in every process that inherits it.

    Returns None where another process holds it and `wait` is False.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = (directory / ".lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    return file


def start(command: Sequence[str], log: Path, held: IO[bytes], **environment: str) -> subprocess.Popen[bytes]:
    """Starts a command in its own process group, with its output at the end of `log` and the lock `held` its own."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            # What a job last said must be in its log when it is killed.
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(held.fileno(),),
        )


def last_lines(path: Path, count: int = 15) -> list[str]:
    """The end of a log; [] where there is none."""
    if not path.is_file():
        return []
    with path.open(errors="replace") as file:
        return [line.rstrip() for line in collections.deque(file, count)]
