"""Measuring in turns: contestants that live side by side run one after the other, round by round.

Whatever slows the machine for a while then slows all of them alike, so ratios are taken within a round.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.benchmarks.contestant import Contestant, Entry, Lost


@dataclasses.dataclass
class Measured:
    """What one contestant did. Lists hold one entry a round, without the warm-ups, in order."""

    name: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    cpu_seconds: list[float] = dataclasses.field(default_factory=list)  # of the process, all threads
    open_s: float = 0.0  # weights and placement; imports are not in it
    first_s: float = 0.0  # the first run, with what it traces and compiles
    compile_s: float = 0.0  # XLA's compilation alone, until the first measured round; 0 where there is none
    compiled: list[float] = dataclasses.field(
        default_factory=list
    )  # that of each round: 0, or it was not warm
    peak_bytes: int = 0  # maximum of the process's resident memory
    about: dict[str, Any] = dataclasses.field(default_factory=dict)
    first: dict[str, Any] = dataclasses.field(default_factory=dict)  # result of the first run, to be compared
    result: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the last
    lost: str = ""  # why it took no further part

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How much faster one contestant is than another: median, least and most over the rounds."""

    median: float
    low: float
    high: float
    rounds: int


def order(count: int, round_number: int) -> list[int]:
    """Who runs when: forwards and backwards in turn (A B C, C B A), so that drift favours nobody."""
    return list(range(count))[:: 1 if round_number % 2 == 0 else -1]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """Their seconds over ours, round by round; above 1 we are faster. None without a common round."""
    rounds = [other / own for own, other in zip(ours, theirs, strict=False)]
    return Ratio(statistics.median(rounds), min(rounds), max(rounds), len(rounds)) if rounds else None


def measure(
    entries: Sequence[Entry],
    spec: Mapping[str, Any],
    *,
    threads: int,
    repeats: int,
    warmups: int,
    deadline_s: float,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Opens `spec` in a process for each entry, and runs it `warmups` + `repeats` times in each, in turns.

    `deadline_s` is for one answer. A contestant that is lost is told of and left out from then on; its earlier rounds
    stay. `tell` is given one line before each thing that takes long.
    """
    found = [Measured(entry.name) for entry in entries]
    with contextlib.ExitStack() as stack:
        playing: dict[int, Contestant] = {}

        def ask(number: int, request: Mapping[str, Any]) -> dict[str, Any] | None:
            try:
                return playing[number].ask(request, deadline_s=deadline_s)
            except Lost as error:
                del playing[number]
                found[number].lost = " ".join(str(error).split())
                tell(f"{found[number].name} is out: {found[number].lost}")
                return None

        for number, entry in enumerate(entries):
            tell(f"{entry.name}: opening")
            try:
                playing[number] = stack.enter_context(Contestant(entry, threads=threads))
            except OSError as error:
                found[number].lost = f"cannot be started: {error}"
                tell(f"{entry.name} is out: {found[number].lost}")
                continue
            stack.callback(_note_peak, found[number], playing[number])
            if reply := ask(number, {"op": "open", "spec": {**spec, **entry.options}}):
                found[number].open_s, found[number].about = reply["seconds"], reply["about"]
                found[number].compile_s = reply["compile_seconds"]
        for round_number in range(warmups + repeats):
            for number in order(len(entries), round_number):
                if number not in playing:
                    continue
                warming = round_number < warmups
                which = "warm-up" if warming else f"round {round_number - warmups + 1} of {repeats}"
                tell(f"{entries[number].name}: {which}")
                if not (reply := ask(number, {"op": "run"})):
                    continue
                one = found[number]
                if not one.first_s:
                    one.first_s, one.first = reply["seconds"], reply["result"]
                one.result = reply["result"]
                if warming:
                    one.compile_s += reply["compile_seconds"]
                else:
                    one.compiled.append(reply["compile_seconds"])
                    one.seconds.append(reply["seconds"])
                    one.cpu_seconds.append(reply["cpu_seconds"])
    return found


def _note_peak(measured: Measured, contestant: Contestant) -> None:
    contestant.close()
    measured.peak_bytes = contestant.peak_bytes
