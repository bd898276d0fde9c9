"""Which steps are entropy outliers, and are they worse? STAPO's analyses (sections 3.3 and 5.4, appendices I and K).

python -m tools.outlier_report --workdir=RUN [--workdir=RUN2 ...] [--games=16] [--members=8] [--split=valid_seen]
    [--steps=first,last | all | 20,40] [--out=DIR]

From the training records, for every iteration of any run: the share of outlier steps, how many of them have too little
and too much entropy, and the advantage of outliers and inliers. H_n and the mask are computed anew from the recorded
entropies, with the run's own settings where it locates outliers and the defaults elsewhere. The advantage is the one
before AEM, whose coefficient is itself made of entropies. R_TA of outliers is the one that training recorded.

On kept checkpoints (the first and the last, unless --steps says otherwise): the same games for all, `members` episodes
of each, sampled as in training (temperature and truncation), so that step groups have members; that is not the
temperature of the run's evaluations. Outliers are located among all these responses; `tools.reliance` says what KL and
attribution are. --games=0 leaves this part out.

Intervals are 95 %: of success Wilson's, of means those of a bootstrap over episodes, which ignores that episodes of one
game resemble one another. Writes outlier_report.md, .png, records.csv, checkpoints.csv and responses.csv (a line a
test-time response).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import track

from configs import common
from rl import evaluation, records
from rl.credit import outliers
from rl.credit.outliers import OutlierSettings
from rl.metrics import wilson
from tools import outlier_plot, reliance
from tools.reopen import reopen

Interval = tuple[float, float, float]  # mean, low, high
Numbers = dict[str, Any]
_locate = jax.jit(outliers.locate, static_argnames="settings")


@dataclasses.dataclass(frozen=True)
class Steps:
    """Responses with their marks, [R] each. `values` may be NaN where they are not known."""

    episode: np.ndarray  # int, which responses are resampled together
    outlier: np.ndarray  # bool
    extremity: np.ndarray  # < 0: too little entropy, > 0: too much
    values: Mapping[str, np.ndarray]


def settings_of(held: Mapping[str, Any]) -> OutlierSettings:
    """Those of a run's config.json where it locates outliers, else the defaults."""
    section = dict(held.get("credit", {}).get("outliers", {}))
    if not section.pop("enabled", False):
        section = common.base().credit.outliers.to_dict()
        del section["enabled"]
    return OutlierSettings(**section)


def mark(
    entropy: np.ndarray, group: np.ndarray, *, settings: OutlierSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(H_n, mask, extremity) of a batch of responses, on the host; see `rl.credit.outliers.locate`."""
    size = max(256, 1 << (len(entropy) - 1).bit_length())  # few shapes, few compilations
    pad = size - len(entropy)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        found = _locate(
            np.pad(entropy.astype(np.float32), (0, pad)),
            np.pad(group.astype(np.int32), (0, pad)),
            np.arange(size) < len(entropy),
            settings=settings,
        )
    normalised, outlier, extremity = (np.asarray(x)[: len(entropy)] for x in found)
    return normalised, outlier, extremity


def from_records(rows: Sequence[Mapping[str, Any]], *, settings: OutlierSettings) -> Steps:
    """The responses of one iteration. Without step groups in the records, one draw and one anchor are a group."""
    names: dict[Any, int] = {}
    labels = [names.setdefault((row["group"], row["anchor"]), len(names)) for row in rows]
    group = [row.get("step_group", label) for row, label in zip(rows, labels)]
    _, outlier, extremity = mark(_column(rows, "entropy"), np.array(group), settings=settings)
    aware = _column(rows, "aware")
    acted = (
        np.nan_to_num(aware) + np.nan_to_num(_column(rows, "independent")) > 0
    )  # a full block leaves some out
    return Steps(
        np.array([row["trajectory"] for row in rows]),
        outlier,
        extremity,
        {"advantage": _column(rows, "advantage_before"), "aware": np.where(acted, aware, np.nan)},
    )


def together(parts: Sequence[Steps]) -> Steps:
    """Several iterations as one; their episodes stay apart."""
    sizes = [1 + int(part.episode.max()) for part in parts]
    offsets = np.cumsum([0, *sizes[:-1]])
    join = np.concatenate
    return Steps(
        join([part.episode + offset for part, offset in zip(parts, offsets)]),
        join([part.outlier for part in parts]),
        join([part.extremity for part in parts]),
        {name: join([part.values[name] for part in parts]) for name in parts[0].values},
    )


def interval(
    values: np.ndarray, chosen: np.ndarray, episode: np.ndarray, *, rounds: int = 1000, seed: int = 0
) -> Interval:
    """Mean of the chosen responses' values and its 95 % percentile interval under resampled episodes.

    Unknown values are left out. NaN without a value; no interval if all are of one episode.
    """
    chosen = chosen & np.isfinite(values)
    _, number = np.unique(episode, return_inverse=True)
    count = np.bincount(number, chosen)
    total = np.bincount(number, np.where(chosen, values, 0))
    if not count.any():
        return float("nan"), float("nan"), float("nan")
    mean = float(total.sum() / count.sum())
    if np.count_nonzero(count) < 2:
        return mean, float("nan"), float("nan")
    draws = np.random.default_rng(seed).integers(0, len(count), (rounds, len(count)))
    totals, counts = total[draws].sum(1), count[draws].sum(1)
    low, high = np.quantile(totals[counts > 0] / counts[counts > 0], [0.025, 0.975])
    return mean, float(low), float(high)


def statistics(steps: Steps) -> dict[str, Any]:
    """Counts, `outlier_share`, and the mean of every value over all, outliers and inliers, with its interval."""
    everything = np.ones(len(steps.outlier), bool)
    out: dict[str, Any] = {
        "responses": len(steps.outlier),
        "episodes": len(np.unique(steps.episode)),
        "outliers": int(steps.outlier.sum()),
        "low": int(np.sum(steps.outlier & (steps.extremity < 0))),
        "high": int(np.sum(steps.outlier & (steps.extremity > 0))),
        "outlier_share": interval(steps.outlier.astype(float), everything, steps.episode),
    }
    for name, values in steps.values.items():
        for part, chosen in (("all", everything), ("outlier", steps.outlier), ("inlier", ~steps.outlier)):
            out[f"{name}_{part}"] = interval(values, chosen, steps.episode)
    return out


def iterations(workdir: Path, *, settings: OutlierSettings) -> dict[int, Steps]:
    """The responses of every recorded iteration. Raises ValueError where a file is damaged."""
    out = {}
    for path in track(_files(workdir), description=f"records of {workdir.name}", transient=True):
        try:
            rows = records.read_lines(path)
            if rows:
                out[int(path.name.partition(".")[0])] = from_records(rows, settings=settings)
        except (EOFError, OSError, KeyError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not out:
        raise ValueError(f"{workdir} has no response records; was it run with log.responses?")
    return out


def periods(found: Mapping[int, Steps]) -> dict[str, Steps]:
    """All iterations, the first tenth and the last tenth, by their numbers."""
    order = sorted(found)
    tenth = max(1, len(order) // 10)
    out = {}
    for some in (order, order[:tenth], order[-tenth:]):
        name = f"{some[0]}-{some[-1]}" if len(some) > 1 else f"{some[0]}"
        out.setdefault(name, together([found[i] for i in some]))
    return out


def windows(found: Mapping[int, Steps], *, count: int = 10) -> dict[float, Steps]:
    """About `count` equal stretches of iterations, each as one, by their centre."""
    parts = np.array_split(np.array(sorted(found)), min(count, len(found)))
    return {float(part.mean()): together([found[int(i)] for i in part]) for part in parts}


def chosen_steps(known: Sequence[int], text: str) -> list[int]:
    """Which kept checkpoints `--steps` names: first, last, all, or numbers. Raises ValueError for others."""
    out: set[int] = set()
    for word in filter(None, map(str.strip, text.split(","))):
        if word == "all":
            out.update(known)
        elif word in ("first", "last"):
            out.add(known[0 if word == "first" else -1])
        elif word.isdigit() and int(word) in known:
            out.add(int(word))
        else:
            raise ValueError(
                f"no checkpoint {word!r}; kept: {', '.join(map(str, known))}; or first, last, all"
            )
    if not out:
        raise ValueError("--steps names no checkpoint")
    return sorted(out)


def checkpoints(
    workdir: Path, args: Any, *, settings: OutlierSettings
) -> Iterator[tuple[Numbers, list[Numbers]]]:
    """(statistics, a record a response) of each chosen checkpoint."""
    with reopen(workdir) as (config, parts):
        tasks = evaluation.fixed_tasks(parts.tasks[args.split], args.games)
        members = args.members or config.rollout.group_size
        steps = chosen_steps(parts.checkpoints.steps(), args.steps)
        for step, played, measured in reliance.study(
            config, parts, steps=steps, tasks=tasks, members=members, seed=args.seed
        ):
            counted = [t for t in played if t.trained]
            wins = sum(t.success for t in counted)
            about = {
                "step": step,
                "split": args.split,
                "games": len(tasks),
                "members": members,
                "temperature": config.rollout.temperature,
                "failed": len(played) - len(counted),
                "success": (wins / len(counted), *wilson(wins, len(counted))),
            }
            turns = [
                (n, k, t, turn) for n, t in enumerate(played) if t.trained for k, turn in enumerate(t.turns)
            ]
            group = np.array([turn.step_group for *_, turn in turns])
            normalised, outlier, extremity = mark(measured.entropy, group, settings=settings)
            values = {**measured._asdict(), "normalised": normalised}
            rows = [
                {"step": step, "task": t.draw.task, "episode": n, "turn": k, "step_group": turn.step_group}
                | {"outlier": bool(outlier[r]), "extremity": float(extremity[r])}
                | {name: float(value[r]) for name, value in values.items()}
                | {"success": t.success, "action": turn.action}
                for r, (n, k, t, turn) in enumerate(turns)
            ]
            marked = Steps(np.array([n for n, *_ in turns]), outlier, extremity, values)
            yield about | statistics(marked), rows


def check(workdir: Path, args: Any) -> dict[str, Any]:
    """The config of a run that the report can be made of. Raises ValueError where it cannot, before any work."""
    path = workdir / "config.json"
    if not path.is_file():
        raise ValueError(f"{workdir} holds no run: config.json is missing")
    config = json.loads(path.read_text())
    if not _files(workdir):
        raise ValueError(f"{workdir} has no response records; was it run with log.responses?")
    if args.games:
        known = ("train", *config["eval"]["splits"])
        if args.split not in known:
            raise ValueError(f"unknown split {args.split!r}; known: {', '.join(known)}")
        if not any((workdir / "checkpoints").glob("step_*")):
            raise ValueError(f"{workdir} has no checkpoint; --games=0 reports the records only")
    return config


def _summed(trained: Mapping[str, Mapping[int, Steps]], cut: Callable[[Any], Mapping[Any, Steps]]) -> Any:
    """{run: {key: statistics}} of each run's iterations, cut as told."""
    return {
        run: {key: statistics(steps) for key, steps in cut(found).items()} for run, found in trained.items()
    }


def _files(workdir: Path) -> list[Path]:
    return sorted((workdir / "responses").glob("[0-9]*.jsonl.gz"))


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    values = (row.get(name) for row in rows)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workdir", type=Path, action="append", required=True, help="a run; may be given several times")
    add("--games", type=int, default=16, help="test-time games; 0 = records only")
    add("--members", type=int, default=0, help="episodes of a game; 0 = as in training")
    add("--split", default="valid_seen")
    add("--steps", default="first,last", help="first, last, all or numbers of kept checkpoints")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=None, help="default: outlier_report in the first run")
    args = parser.parse_args(argv)
    if args.games < 0 or args.members < 0:
        parser.error("--games and --members must not be negative")
    out = args.out or args.workdir[0] / "outlier_report"
    short = [path.resolve().name for path in args.workdir]
    names = short if len(set(short)) == len(short) else [str(path) for path in args.workdir]
    trained: dict[str, dict[int, Steps]] = {}
    tested: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    try:
        chosen = [settings_of(check(path, args)) for path in args.workdir]
        for name, path, settings in zip(names, args.workdir, chosen):
            trained[name] = iterations(path, settings=settings)
        for name, path, settings in zip(names, args.workdir, chosen):
            for summary, rows in checkpoints(path, args, settings=settings) if args.games else ():
                tested.append({"run": name} | summary)
                lines += [{"run": name} | row for row in rows]
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    each, pooled = _summed(trained, dict), _summed(trained, periods)
    out.mkdir(parents=True, exist_ok=True)
    rows = [{"run": name, "iteration": i} | some for name, found in each.items() for i, some in found.items()]
    for file, table in (("records", rows), ("checkpoints", tested), ("responses", lines)):
        if table:
            outlier_plot.write_csv(out / f"{file}.csv", table)
    made = outlier_plot.tables(pooled, tested)
    (out / "outlier_report.md").write_text(outlier_plot.markdown(made))
    title = f"{', '.join(names)}: {made[1][0].partition(': ')[2] if tested else 'training records'}"
    outlier_plot.draw(each, _summed(trained, windows), tested, out / "outlier_report.png", title=title)
    console = Console()
    for name, cells in made:
        console.print(outlier_plot.rich_table(name, cells))
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
