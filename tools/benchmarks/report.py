"""What was measured, as a table on the terminal and as JSON with every run in it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from model.config import ModelConfig
from tools.benchmarks import counts
from tools.benchmarks.contestant import cpus
from tools.benchmarks.growth import Point
from tools.benchmarks.shapes import Sizes
from tools.benchmarks.turns import Measured, Ratio, ratio


@dataclasses.dataclass(frozen=True)
class Case:
    """One work at one size, measured in every contestant; the first of them is ours.

    model and ceilings are None where there is nothing to count (envs).
    """

    title: str
    work: str
    sizes: Sizes
    measured: Sequence[Measured]
    model: ModelConfig | None = None
    ceilings: dict[str, float] | None = None

    @property
    def tokens(self) -> int:
        """Tokens of a run; steps that were really played for envs, whose episodes may end early."""
        if self.work == "envs":
            return next((m.result["tokens"] for m in self.measured if m.result), 0)
        return self.sizes.tokens(self.work)

    @property
    def least_s(self) -> float | None:
        """The roofline's seconds."""
        if self.model is None or self.ceilings is None:
            return None
        return counts.least_s(self.work, self.model, self.sizes, **self.ceilings)

    def ratios(self) -> dict[str, Ratio | None]:
        """Speed of ours over each other's, by name."""
        ours, *others = self.measured
        return {other.name: ratio(ours.seconds, other.seconds) for other in others}

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        flops = None
        if self.model is not None:
            flops = sum(phase.flops for phase in counts.phases(self.work, self.model, self.sizes))
        return {
            "title": self.title,
            "work": self.work,
            "sizes": dataclasses.asdict(self.sizes),
            "tokens": self.tokens,
            "flops": flops,
            "roofline_s": self.least_s,
            "contestants": [
                dataclasses.asdict(one)
                | {
                    "median_s": one.median_s,
                    "tokens_per_s": self._rate(one),
                    "roofline_share": self._share(one),
                }
                for one in self.measured
            ],
            "ratios": {name: found and dataclasses.asdict(found) for name, found in self.ratios().items()},
        }

    def table(self) -> Table:
        """A row a contestant."""
        unit = "steps/s" if self.work == "envs" else "tokens/s"
        table = Table(title=self.title, title_justify="left")
        table.add_column("")
        for heading in ("median s", unit, "CPU s", "peak MB", "of roofline", "first s", "compile s"):
            table.add_column(heading, justify="right")
        if len(self.measured) > 1:
            for quantity in ("speed", "memory"):
                table.add_column(f"{quantity} of {self.measured[0].name} to it", justify="right")
        ratios = self.ratios()
        for one in self.measured:
            cells = [
                one.name,
                _number(one.median_s),
                _number(self._rate(one)),
                _number(statistics.median(one.cpu_seconds) if one.cpu_seconds else None),
                f"{one.peak_bytes / 1e6:.0f}" if one.peak_bytes else "",
                _percent(self._share(one)),
                _number(one.first_s),
                _number(one.compile_s),
            ]
            if found := ratios.get(one.name):
                memory = self.measured[0].peak_bytes / one.peak_bytes
                cells += [f"{found.median:.2f}x [{found.low:.2f}, {found.high:.2f}]", f"{memory:.2f}x"]
            table.add_row(*cells)
        return table

    def print(self, console: Console) -> None:
        """The table, and what became of those that were lost or compiled while they were measured."""
        console.print(self.table())
        for one in self.measured:
            if one.lost:
                console.print(f"{one.name} is out after {len(one.seconds)} rounds: {one.lost}", markup=False)
            if sum(one.compiled) > 0:
                console.print(f"{one.name} compiled in a measured round; add --warmups", markup=False)

    def _rate(self, one: Measured) -> float | None:
        return self.tokens / one.median_s if one.median_s else None

    def _share(self, one: Measured) -> float | None:
        return self.least_s / one.median_s if one.median_s and self.least_s else None


@dataclasses.dataclass
class Record:
    """All that a command measured."""

    settings: dict[str, Any]  # its flags
    machine: dict[str, Any]  # at the start
    ceilings: dict[str, float] = dataclasses.field(default_factory=dict)
    cases: list[Case] = dataclasses.field(default_factory=list)
    curves: list[tuple[Point, Case]] = dataclasses.field(default_factory=list)

    def write(self, path: Path | None) -> None:
        """Writes all so far as JSON, so that it outlives an interruption; None: nowhere."""
        if path is None:
            return
        found = {
            "settings": self.settings,
            "machine": self.machine,
            "machine_at_the_end": machine(self.machine["threads"]),
            "ceilings": self.ceilings,
            "cases": [case.to_dict() for case in self.cases],
            "curves": [{"axis": p.axis, "value": p.value} | case.to_dict() for p, case in self.curves],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


def machine(threads: int) -> dict[str, Any]:
    """Where this runs and how busy it is."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": len(cpus()),
        "threads": threads,
        "memory_bytes": memory,
        "load": os.getloadavg(),
        "python": sys.version.split()[0],
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    """The processor's name, "" where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
