"""Tables of finished runs, by run as CSV and by method as Markdown. The same runs give the same bytes.

Nothing in them depends on when or in how many goes the runs were made: no times, no paths, rows in the given order.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from tools.outcomes import Outcome
from tools.spread import Spread, spread

_NOTE = (
    "Success: share of evaluation games won after the last iteration. Entropy: mean over the responses of the last "
    "training iteration, in nats. Each is the mean over seeds ± sample deviation, then Student's 95 % interval of that "
    "mean (cut at 0 and 100 % for shares). Seeds: finished runs; only they count. Open: runs that have not ended."
)


def markdown(methods: Mapping[str, Sequence[Outcome]], *, failed: Sequence[str] = ()) -> str:
    """One row a method.

    Args:
      methods: the outcomes of each method's runs. What is not finished is left out of means and counted.
      failed: names to list below the table.
    """
    everything = [outcome for outcomes in methods.values() for outcome in outcomes]
    splits = list(dict.fromkeys(name for outcome in everything for name in outcome.success))
    head = ["method", "seeds", "failed", "open"]
    head += [title for name in splits for title in (f"{name} success, %", "95 %", "games")]
    head += ["entropy, nats", "95 %"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for method, outcomes in methods.items():
        whole = [outcome for outcome in outcomes if outcome.state == "finished"]
        broken = sum(outcome.state == "failed" for outcome in outcomes)
        row = [method, *map(str, (len(whole), broken, len(outcomes) - len(whole) - broken))]
        for name in splits:
            row += _share(spread([outcome.success[name] for outcome in whole if name in outcome.success]))
            row.append(_games([outcome.games[name] for outcome in whole if name in outcome.games]))
        row += _nats(spread([outcome.entropy for outcome in whole if outcome.entropy is not None]))
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", _NOTE]
    if failed:
        lines += ["", f"Failed: {', '.join(failed)}."]
    return "\n".join(lines) + "\n"


def against(methods: Mapping[str, Mapping[int, Outcome]], *, baseline: str) -> str:
    """One row a method but the baseline: what its runs have more than the baseline's of the same seed.

    Args:
      methods: for each method its outcomes by seed; of a pair both must be finished.
      baseline: one of them.
    """
    base = methods[baseline]
    splits = list(dict.fromkeys(name for outcome in base.values() for name in outcome.success))
    head = [f"minus {baseline}, same seed", "pairs"]
    head += [title for name in splits for title in (f"{name} success, points", "95 %")]
    lines = [f"| {' | '.join([*head, 'entropy, nats', '95 %'])} |", "|---|" + "---:|" * (len(head) + 1)]
    for method, outcomes in methods.items():
        if method == baseline:
            continue
        pairs = [
            (outcome, base[seed])
            for seed, outcome in outcomes.items()
            if seed in base and outcome.state == base[seed].state == "finished"
        ]
        row = [method, str(len(pairs))]
        for name in splits:
            both = [(a, b) for a, b in pairs if name in a.success and name in b.success]
            row += _signed(spread([100 * (a.success[name] - b.success[name]) for a, b in both]), places=1)
        entropies = [(a.entropy, b.entropy) for a, b in pairs]
        row += _signed(spread([a - b for a, b in entropies if a is not None and b is not None]), places=4)
        lines.append(f"| {' | '.join(row)} |")
    return (
        "\n".join(
            [*lines, "", "Mean over pairs ± sample deviation, then Student's 95 % interval of that mean."]
        )
        + "\n"
    )


def comma_separated(runs: Mapping[str, tuple[str, int, Outcome]]) -> str:
    """One row a run: {name: (method, seed, outcome)}. Values of a run that is not finished are left empty."""
    splits = list(dict.fromkeys(split for *_, outcome in runs.values() for split in outcome.success))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [f"{split}_{what}" for split in splits for what in ("success", "games")]
    writer.writerow(["cell", "method", "seed", "state", "iteration", *columns, "entropy"])
    for name, (method, seed, outcome) in runs.items():
        values: list[str | float] = ["" for _ in ("iteration", *columns, "entropy")]
        if outcome.state == "finished":
            values = [outcome.iteration]
            for split in splits:
                values += [outcome.success.get(split, ""), outcome.games.get(split, "")]
            values.append("" if outcome.entropy is None else outcome.entropy)
        writer.writerow([name, method, seed, outcome.state, *values])
    return text.getvalue()


def _share(found: Spread) -> list[str]:
    low, high = (min(1.0, max(0.0, end)) if math.isfinite(end) else end for end in (found.low, found.high))
    return [
        _plus_minus(100 * found.mean, 100 * found.deviation, places=1),
        _interval(100 * low, 100 * high, places=1),
    ]


def _nats(found: Spread) -> list[str]:
    return [_plus_minus(found.mean, found.deviation, places=4), _interval(found.low, found.high, places=4)]


def _signed(found: Spread, *, places: int) -> list[str]:
    sign = "+" if found.mean > 0 else ""
    return [
        sign + _plus_minus(found.mean, found.deviation, places=places),
        _interval(found.low, found.high, places=places),
    ]


def _plus_minus(mean: float, deviation: float, *, places: int) -> str:
    if math.isnan(mean):
        return "none"
    return f"{mean:.{places}f}" + ("" if math.isnan(deviation) else f" ± {deviation:.{places}f}")


def _interval(low: float, high: float, *, places: int) -> str:
    return "none" if math.isnan(low) else f"[{low:.{places}f}, {high:.{places}f}]"


def _games(counts: Sequence[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)})) if counts else "none"
