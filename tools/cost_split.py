"""Where an iteration's time goes, and what of it is AEM's.

python -m tools.cost_split --workdir=runs/alfworld_aem [--out=DIR] [--rounds=300]

Phases are the medians of `time/*` in metrics.jsonl over the iterations after the first, which compiles. AEM has no
phase of its own: its entropies come from the pass that gives the old log-probabilities, and its coefficient is part of
the credit stage. That stage is compiled with and without AEM here and now and timed in turns, on a table of responses
that the run wrote (a drawn one where it wrote none). Writes cost_split.md and cost_split.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl import metrics
from tools import panels

_WORDS = {
    "rollout": "rollout",
    "batch": "packing, transfer to the devices",
    "score": "scoring: old log-probabilities and entropies",
    "credit": "credit: base advantage and AEM",
    "blind": "blind contexts of located responses (STAPO)",
    "update": "update",
    "other": "between the phases: metrics, mismatch check",
}


@dataclasses.dataclass(frozen=True)
class Phase:
    name: str  # as in time/<name>; "other" is what no phase measures
    seconds: float  # median over iterations
    share: float  # of the median iteration


@dataclasses.dataclass(frozen=True)
class Split:
    phases: Sequence[Phase]  # in the order of an iteration
    iteration: float  # seconds, median
    count: int  # iterations that the medians are over
    evaluation: float | None  # seconds, median over evaluations; outside of the iterations
    responses: int  # median


def split(rows: Sequence[Mapping[str, Any]]) -> Split:
    """Returns the medians over all trained iterations but the first.

    Raises:
      ValueError: with fewer than two trained iterations.
    """
    trained = [row for row in rows if row.get("time/iteration") is not None]
    if len(trained) < 2:
        raise ValueError(f"{len(trained)} trained iterations; the first one compiles, so two are the least")
    trained = trained[1:]
    names = [k.removeprefix("time/") for k in trained[0] if k.startswith("time/")]
    names = [name for name in names if name not in ("iteration", "eval")]
    middle = statistics.median(row["time/iteration"] for row in trained)
    seconds = {name: statistics.median(row.get(f"time/{name}") or 0.0 for row in trained) for name in names}
    rest = [row["time/iteration"] - sum(row.get(f"time/{n}") or 0.0 for n in names) for row in trained]
    seconds["other"] = statistics.median(rest)
    evaluations = [row["time/eval"] for row in rows if row.get("time/eval") is not None]
    return Split(
        [Phase(name, value, value / middle) for name, value in seconds.items()],
        middle,
        len(trained),
        statistics.median(evaluations) if evaluations else None,
        round(statistics.median(row.get("credit/responses") or 0 for row in trained)),
    )


def markdown(found: Split, aem: Any = None, *, about: str = "") -> str:
    """The table; `aem` is a `tools.credit_timing.Timing` and `about` says on what it was measured."""
    lines = [
        f"Medians over {found.count} iterations (all trained ones but the first), {found.responses} responses each.",
        "",
        "| phase | seconds | share of an iteration |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {_WORDS.get(phase.name, phase.name)} | {_seconds(phase.seconds)} | {_percent(phase.share)} |"
        for phase in found.phases
    ]
    lines += [
        f"| **whole iteration** | {_seconds(found.iteration)} | |",
        "",
        "Shares are of the median iteration; medians of parts need not add up to the median of the whole.",
    ]
    if found.evaluation is not None:
        lines.append(f"An evaluation, outside of the iterations: {_seconds(found.evaluation)} s (median).")
    if aem is not None:
        lines += [
            "",
            "| credit stage, measured now | milliseconds | share of an iteration |",
            "|---|---:|---:|",
            f"| with AEM | {1e3 * aem.on:.3f} | {_percent(aem.on / found.iteration)} |",
            f"| without | {1e3 * aem.off:.3f} | {_percent(aem.off / found.iteration)} |",
            f"| **AEM's own** (median difference) | {1e3 * aem.difference:.3f} "
            f"| {_percent(aem.difference / found.iteration)} |",
            "",
            f"Measured: the compiled credit stage, called in turns with and without AEM, {aem.rounds} rounds on "
            f"{about}; quartiles of the difference {1e3 * aem.low:.3f} to {1e3 * aem.high:.3f} ms. Not in it: the "
            "entropies, which the scoring pass gives along with the old log-probabilities, with AEM or without.",
        ]
    return "\n".join(lines) + "\n"


def draw(found: Split, path: Path, *, title: str, aem: Any = None) -> None:
    """Draws a bar a phase, top to bottom as an iteration runs, and one for AEM's own part of the credit stage."""
    bars = [(phase.name, phase.seconds, phase.share) for phase in found.phases]
    if aem is not None:
        place = next((n for n, bar in enumerate(bars) if bar[0] == "credit"), len(bars) - 1) + 1
        bars.insert(place, ("AEM alone", aem.difference, aem.difference / found.iteration))
    figure, (axes,) = panels.stacked((1.3,))
    names, seconds, shares = zip(*bars)
    colours = ["#c44e52" if name == "AEM alone" else "#4c72b0" for name in names]
    axes.barh(range(len(bars)), seconds, color=colours, height=0.7)
    for place, (value, share) in enumerate(zip(seconds, shares)):
        text = f"{_seconds(value)} s, {_percent(share)}"
        axes.annotate(
            text, (max(value, 0), place), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(seconds))
    axes.set_title(
        f"{title}: an iteration of {found.iteration:.1f} s, medians of {found.count}", loc="left", fontsize=11
    )
    panels.dress(axes)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds")
    panels.save(figure, path)


def _seconds(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) >= 0.01 else f"{100 * share:.2g} %"


def _timing(workdir: Path, found: Split, rounds: int) -> tuple[Any, str]:
    import jax  # late: the rest of the tool needs no device

    from tools import credit_timing
    from tools.reopen import load_config

    config = load_config(workdir)
    multiple = config.learner.response_bucket
    files = sorted((workdir / "responses").glob("*.jsonl.gz"))
    if files:
        table = credit_timing.recorded(files[len(files) // 2], multiple=multiple)
    else:
        size = config.rollout
        table = credit_timing.synthetic(
            found.responses or 1, groups=size.groups, group_size=size.group_size, multiple=multiple
        )
    aem = credit_timing.measure(table, config.credit, rounds=rounds)
    device = jax.devices()[0]
    rows = table.responses.valid.shape[0]
    return (
        aem,
        f"{table.count} responses in {rows} rows ({table.source}), {device.platform} {device.device_kind}",
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workdir", required=True, help="run directory")
    add("--out", default="", help="where to write; the run directory by default")
    add("--rounds", type=int, default=300, help="pairs of timed credit stages; 0 = phases only")
    options = parser.parse_args(argv)
    workdir = Path(options.workdir)
    out = Path(options.out) if options.out else workdir
    try:
        found = split(metrics.read(workdir / "metrics.jsonl"))
        aem, about = _timing(workdir, found, options.rounds) if options.rounds else (None, "")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    out.mkdir(parents=True, exist_ok=True)
    text = markdown(found, aem, about=about)
    (out / "cost_split.md").write_text(text)
    draw(found, out / "cost_split.png", title=workdir.absolute().name, aem=aem)
    print(text)
    print(out / "cost_split.png")


if __name__ == "__main__":
    main()
