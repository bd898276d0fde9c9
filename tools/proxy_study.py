"""Does AEM's coefficient tell a response's surprisal? AEM's analysis A (section 5.3, figure 2) on a run's checkpoint.

python -m tools.proxy_study --workdir=runs/alfworld_aem [--states=64] [--responses=64] [--split=train] [--out=DIR]

Groups are played with the checkpoint's policy at the training temperature, and alpha comes from the run's own scoring
and credit stages (with AEM's defaults where the run had it off). From all their responses `states` are drawn. In each
one's context `responses` new ones are sampled; the mean of their surprisals `S = -log pi` is `H_resp`. A state is one
point: `alpha - 1` of the response that was played there against `-(S - H_resp)`. Intervals are bootstrapped over
states.
Writes proxy_study.json, proxy_study.md and proxy_study.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from rl import batching
from rl.credit.aem import AemSettings
from rl.learner import Learner
from rl.types import Draw, Trajectory
from tools.reopen import reopen

PAPER = {"pearson": 0.63, "agreement": 0.859}
Statistic = Callable[[np.ndarray, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class State:
    context: list[int]  # every id before the response
    surprisal: float  # nats, of the response that was played
    alpha: float


def pearson(one: np.ndarray, two: np.ndarray) -> float:
    """Returns Pearson's r; NaN where either does not vary."""
    one, two = one - one.mean(), two - two.mean()
    scale = np.sqrt(np.square(one).sum() * np.square(two).sum())
    return float((one * two).sum() / scale) if scale > 0 else float("nan")


def agreement(one: np.ndarray, two: np.ndarray) -> float:
    """Returns the share of pairs with one sign, among those in which neither is 0; NaN without any."""
    known = (one != 0) & (two != 0)
    return float(np.mean(np.sign(one[known]) == np.sign(two[known]))) if known.any() else float("nan")


def bootstrap(
    one: np.ndarray, two: np.ndarray, statistic: Statistic, *, rounds: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Returns the 95 % percentile interval of a statistic under resampled pairs; rounds that give NaN are left out."""
    source = np.random.default_rng(seed)
    draws = source.integers(0, len(one), (rounds, len(one)))
    values = np.array([statistic(one[d], two[d]) for d in draws])
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def states(config: Any, parts: Any, *, split: str, count: int, seed: int) -> list[State]:
    """Plays groups and draws `count` of their responses (all, if there are fewer)."""
    rollout = config.rollout
    tasks = random.Random(seed).sample(
        sorted(parts.tasks[split]), min(rollout.groups, len(parts.tasks[split]))
    )
    draws = [
        Draw(task, group, member, random.Random(f"{seed}/{group}/{member}").getrandbits(32))
        for group, task in enumerate(tasks)
        for member in range(rollout.group_size)
    ]
    with parts.progress.bar("episodes", len(draws)) as advance:
        played = parts.rollout.collect(parts.state.params, draws, on_episode=lambda _: advance())
    batch = batching.pack(
        played,
        context=rollout.context,
        microbatch_tokens=config.learner.microbatch_tokens,
        row_buckets=config.learner.row_buckets,
        response_bucket=config.learner.response_bucket,
        multiple=parts.learner.row_multiple,
    )
    learner = with_aem(parts.learner)
    scored = learner.score(parts.state, learner.place(batch))
    _, credited = learner.credit(parts.state, scored, parts.iteration)
    alpha, surprisal = np.asarray(credited.alpha), np.asarray(scored.surprisal)
    found = [
        State(context, float(surprisal[r]) * length, float(alpha[r]))
        for r, (context, length) in enumerate(contexts(played, rollout.context))
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


def with_aem(learner: Learner) -> Learner:
    """The learner itself, or one with AEM's defaults where it has none."""
    settings = learner.settings
    if settings.credit.aem is not None:
        return learner
    default = AemSettings(
        threshold=0.1, scope="group", reverse=False, shuffle=False, proxy="entropy", mix=0.5
    )
    credit = dataclasses.replace(settings.credit, aem=default)
    return Learner(
        learner.config, dataclasses.replace(settings, credit=credit), learner.tx, mesh=learner.mesh, seed=0
    )


def contexts(played: Sequence[Trajectory], kind: str) -> list[tuple[list[int], int]]:
    """(ids before a response, its length), in the order of the response table."""
    out = []
    for trajectory in played:
        before: list[int] = []
        for turn in trajectory.turns if trajectory.trained else ():
            before = list(turn.context_ids) if kind == "step" else [*before, *turn.context_ids]
            out.append((before, len(turn.response_ids)))
            before = [*before, *turn.response_ids]
    return out


def surprisals(
    sampler: Any, params: Any, context: list[int], *, count: int, limit: int, seed: int
) -> np.ndarray:
    """Returns `-log pi` of `count` responses sampled after one context, at the sampler's temperature."""
    made: list[float] = []
    while len(made) < count:
        size = min(sampler.slots, count - len(made))
        seeds = [(seed * 1_000_003 + len(made) + n) % 2**32 for n in range(size)]
        first = sampler.extend(params, range(size), [context] * size, seeds, restart=[True] * size)
        total = -np.asarray(first.logp, np.float64)
        active = np.zeros(sampler.slots, bool)
        active[:size] = ~np.asarray(first.stopped)
        length = np.ones(sampler.slots, int)
        while active.any():
            chunk = sampler.decode(params, active, np.full(sampler.slots, limit, np.int32))
            for slot in np.flatnonzero(active):
                number = int(chunk.counts[slot])
                total[slot] -= chunk.logp[slot, :number].sum()
                length[slot] += number
            active &= ~(chunk.stopped | chunk.full | (length >= limit))
        made += total.tolist()
    return np.asarray(made)


def study(found: Sequence[State], entropies: np.ndarray, *, seed: int) -> dict[str, Any]:
    """Returns the two statistics with their intervals, the points, and what was left out of the agreement."""
    one = np.array([state.alpha for state in found]) - 1
    two = entropies - np.array([state.surprisal for state in found])
    return {
        "states": len(found),
        "silent": int(np.sum(one == 0)),  # alpha 1: AEM's guard; no sign to agree
        "pearson": pearson(one, two),
        "pearson_interval": bootstrap(one, two, pearson, seed=seed),
        "agreement": agreement(one, two),
        "agreement_interval": bootstrap(one, two, agreement, seed=seed),
        "alpha_minus_1": one.tolist(),
        "minus_relative_surprisal": two.tolist(),
    }


def table(result: dict[str, Any], *, responses: int) -> str:
    """Returns the result as Markdown, beside the paper's numbers."""
    low, high = result["pearson_interval"]
    least, most = result["agreement_interval"]
    return "\n".join(
        [
            f"{result['states']} states, {responses} responses each; {result['silent']} states with alpha = 1.",
            "",
            "| | here, 95 % interval | paper (Qwen2.5-1.5B) |",
            "|---|---|---|",
            f"| Pearson r | {result['pearson']:.2f} [{low:.2f}, {high:.2f}] | {PAPER['pearson']} |",
            f"| sign agreement | {result['agreement']:.1%} [{least:.1%}, {most:.1%}] | {PAPER['agreement']:.1%} |",
            "",
        ]
    )


def draw(result: dict[str, Any], path: Path, *, title: str) -> None:
    one, two = np.array(result["alpha_minus_1"]), np.array(result["minus_relative_surprisal"])
    agree = np.sign(one) == np.sign(two)
    figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    for chosen, colour, name in (
        (agree, "tab:blue", "signs agree"),
        (~agree, "tab:red", "signs differ or alpha = 1"),
    ):
        axes.scatter(
            one[chosen], two[chosen], s=22, alpha=0.75, color=colour, label=f"{name} ({chosen.sum()})"
        )
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel("alpha - 1")
    axes.set_ylabel("-(S - H_resp), nats")
    axes.set_title(
        f"{title}: r = {result['pearson']:.2f}, signs agree {result['agreement']:.0%}",
        loc="left",
        fontsize=11,
    )
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--states", type=int, default=64)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--split", default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="default: WORKDIR/proxy_study")
    args = parser.parse_args(argv)
    if args.states < 2 or args.responses < 2:
        parser.error("--states and --responses must be at least 2")
    out = args.out or args.workdir / "proxy_study"
    try:
        with reopen(args.workdir) as (config, parts):
            if args.split not in parts.tasks:
                raise ValueError(f"unknown split {args.split!r}; known: {', '.join(parts.tasks)}")
            found = states(config, parts, split=args.split, count=args.states, seed=args.seed)
            entropies = []
            with parts.progress.bar("states", len(found)) as advance:
                for number, state in enumerate(found):
                    values = surprisals(
                        parts.rollout.sampler,
                        parts.state.params,
                        state.context,
                        count=args.responses,
                        limit=config.rollout.response_limit,
                        seed=args.seed * 7919 + number,
                    )
                    entropies.append(values.mean())
                    advance()
            iteration = parts.iteration
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = study(found, np.array(entropies), seed=args.seed) | {"iteration": iteration, "split": args.split}
    out.mkdir(parents=True, exist_ok=True)
    (out / "proxy_study.json").write_text(json.dumps(result, indent=1))
    text = table(result, responses=args.responses)
    (out / "proxy_study.md").write_text(text)
    draw(result, out / "proxy_study.png", title=f"{args.workdir.name}, iteration {iteration}")
    print(text)
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
