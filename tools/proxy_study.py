"""Does AEM's coefficient tell a response's surprisal? AEM's analysis A (section 5.3, figure 2) on a run's checkpoint.

python -m tools.proxy_study --workdir=runs/alfworld_aem [--states=64] [--responses=64] [--split=train] [--out=DIR]

Groups are played with the checkpoint's policy at the training temperature. From all their responses `states` are drawn;
in the context of each, `responses` new ones are sampled, and the mean of their surprisals `S = -log pi` is `H_resp`.
`alpha - 1` (from the run's own scoring and credit) is held against `-(S - H_resp)` in two ways:
  played   one point a state, as in the paper: the response that was played there, alpha in its task's group
  sampled  all new responses, alpha in the group of those of one state: S is compared within states alone
Intervals are bootstrapped over states. Writes proxy_study.json, proxy_study.md and proxy_study.png.
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

from rl import batching, builder
from rl.learner import Learner
from rl.types import Draw, ScoredBatch, Trajectory, Turn
from tools.reopen import reopen

PAPER = {"pearson": 0.63, "agreement": 0.859}
NAMES = {
    "played": "played responses, alpha in their task's group",
    "sampled": "all sampled responses, alpha in their state's group",
}
Statistic = Callable[[np.ndarray, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class State:
    context: list[int]  # every id before the response
    surprisal: float  # nats, of the response that was played
    alpha: float


def pearson(one: np.ndarray, two: np.ndarray) -> float:
    """Returns Pearson's r over all elements; NaN where either does not vary."""
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
    """Returns the 95 % percentile interval of a statistic where the first axis (states) is resampled.

    What lies under one index of that axis is drawn together; rounds that give NaN are left out.
    """
    source = np.random.default_rng(seed)
    draws = source.integers(0, len(one), (rounds, len(one)))
    values = np.array([statistic(one[d], two[d]) for d in draws])
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def compare(alpha: np.ndarray, surprisal: np.ndarray, entropy: np.ndarray, *, seed: int) -> dict[str, Any]:
    """Returns both statistics with their intervals, the points, and what the agreement leaves out.

    `alpha` and `surprisal` are [states] or [states, responses], `entropy` (H_resp) is [states]; nats.
    """
    one = alpha - 1
    two = (entropy if alpha.ndim == 1 else entropy[:, None]) - surprisal
    return {
        "points": one.size,
        "silent": int(np.sum(one == 0)),  # alpha 1: AEM's guard
        "ties": int(np.sum((one != 0) & (two == 0))),  # S = H_resp
        "pearson": pearson(one, two),
        "pearson_interval": bootstrap(one, two, pearson, seed=seed),
        "agreement": agreement(one, two),
        "agreement_interval": bootstrap(one, two, agreement, seed=seed),
        "alpha_minus_1": one.tolist(),
        "minus_relative_surprisal": two.tolist(),
    }


def states(config: Any, parts: Any, learner: Learner, *, split: str, count: int, seed: int) -> list[State]:
    """Plays groups and draws `count` of their responses (all, if there are fewer).

    Raises:
      ValueError: if fewer than two responses were played.
    """
    rollout, tasks = config.rollout, sorted(parts.tasks[split])
    tasks = random.Random(seed).sample(tasks, min(rollout.groups, len(tasks)))
    draws = [
        Draw(task, group, member, random.Random(f"{seed}/{group}/{member}").getrandbits(32))
        for group, task in enumerate(tasks)
        for member in range(rollout.group_size)
    ]
    with parts.progress.bar("episodes", len(draws)) as advance:
        played = parts.rollout.collect(parts.state.params, draws, on_episode=lambda _: advance())
    scored = score(config, parts, played, context=rollout.context)
    _, credited = learner.credit(parts.state, scored, parts.iteration)
    alpha = np.asarray(credited.alpha)
    found = [
        State(context, surprisal, float(alpha[r]))
        for r, (context, surprisal) in enumerate(contexts(played, rollout.context))
    ]
    if len(found) < 2:
        raise ValueError(f"{len(draws)} episodes of split {split!r} gave {len(found)} responses")
    return random.Random(seed).sample(found, min(count, len(found)))


def score(config: Any, parts: Any, episodes: Sequence[Trajectory], *, context: str) -> ScoredBatch:
    """Packs episodes and scores them as training does."""
    learner = config.learner
    batch = batching.pack(
        episodes,
        context=context,
        microbatch_tokens=learner.microbatch_tokens,
        row_buckets=learner.row_buckets,
        response_bucket=learner.response_bucket,
        multiple=parts.learner.row_multiple,
    )
    with parts.progress.phase("scoring"):
        return parts.learner.score(parts.state, parts.learner.place(batch))


def crediting(learner: Learner, credit: Any, **aem: Any) -> Learner:
    """A learner that credits with the AEM settings of a run's config, switched on, and with `aem` instead of some."""
    credit = credit.copy_and_resolve_references()
    credit.aem.update(aem | {"enabled": True})
    settings = dataclasses.replace(learner.settings, credit=builder.credit_settings(credit))
    return Learner(learner.config, settings, learner.tx, mesh=learner.mesh, seed=0)


def contexts(played: Sequence[Trajectory], kind: str) -> list[tuple[list[int], float]]:
    """(ids before a response, its surprisal in nats), in the order of the response table."""
    out = []
    for trajectory in played:
        before: list[int] = []
        for turn in trajectory.turns if trajectory.trained else ():
            before = list(turn.context_ids) if kind == "step" else [*before, *turn.context_ids]
            out.append((before, -float(np.sum(turn.logp))))
            before = [*before, *turn.response_ids]
    return out


def sample(sampler: Any, params: Any, context: list[int], *, count: int, limit: int, seed: int) -> list[Turn]:
    """Returns `count` responses of at most `limit` tokens to one context, at the sampler's temperature."""
    made: list[Turn] = []
    while len(made) < count:
        size = min(sampler.slots, count - len(made))
        seeds = [(seed * 1_000_003 + len(made) + n) % 2**32 for n in range(size)]
        first = sampler.extend(params, range(size), [context] * size, seeds, restart=[True] * size)
        ids, logp = ([[value.item()] for value in values] for values in (first.tokens, first.logp))
        active = np.zeros(sampler.slots, bool)
        active[:size] = ~np.asarray(first.stopped)
        while active.any():
            chunk = sampler.decode(params, active, np.full(sampler.slots, limit, np.int32))
            for slot in np.flatnonzero(active):
                number = int(chunk.counts[slot])
                ids[slot] += chunk.tokens[slot, :number].tolist()
                logp[slot] += chunk.logp[slot, :number].tolist()
                active[slot] = not (chunk.stopped[slot] or chunk.full[slot] or len(ids[slot]) >= limit)
        made += [Turn(context, i, p, stop="", prompt="", blind="", anchor="", response="")
                 for i, p in zip(ids, logp, strict=True)]  # fmt: skip
    return made


def alphas(config: Any, parts: Any, learner: Learner, sampled: Sequence[Sequence[Turn]]) -> np.ndarray:
    """Returns alpha [states, responses] where the responses of one state are a group."""
    episodes = [
        Trajectory(Draw("", group, member, 0), [turn])
        for group, turns in enumerate(sampled)
        for member, turn in enumerate(turns)
    ]
    scored = score(config, parts, episodes, context="step")  # each with its whole context in a row of its own
    _, credited = learner.credit(parts.state, scored, parts.iteration)
    return np.asarray(credited.alpha)[: len(episodes)].reshape(len(sampled), -1)


def study(config: Any, parts: Any, *, split: str, count: int, responses: int, seed: int) -> dict[str, Any]:
    """Returns the result of both ways for `count` states with `responses` samples each."""
    found = states(
        config, parts, crediting(parts.learner, config.credit), split=split, count=count, seed=seed
    )
    sampled = []
    with parts.progress.bar("states", len(found)) as advance:
        for number, state in enumerate(found):
            sampled.append(
                sample(
                    parts.rollout.sampler,
                    parts.state.params,
                    state.context,
                    count=responses,
                    limit=config.rollout.response_limit,
                    seed=seed * 7919 + number,
                )
            )
            advance()
    # Nothing is won or lost in these groups, and each episode has one response.
    inside = crediting(parts.learner, config.credit, scope="group", noise_variance=0.0)
    surprisal = np.array([[-np.sum(turn.logp) for turn in turns] for turns in sampled])
    entropy = surprisal.mean(1)
    played = np.array([(state.alpha, state.surprisal) for state in found])
    return {
        "iteration": parts.iteration,
        "split": split,
        "states": len(found),
        "responses": responses,
        "h_resp": entropy.tolist(),
        "played": compare(played[:, 0], played[:, 1], entropy, seed=seed),
        "sampled": compare(alphas(config, parts, inside, sampled), surprisal, entropy, seed=seed),
    }


def table(result: dict[str, Any]) -> str:
    """Returns the result as Markdown, beside the paper's numbers."""
    lines = [
        f"{result['states']} states of split {result['split']}, {result['responses']} responses each, "
        f"iteration {result['iteration']}; 95 % intervals over states.",
        "",
        "| | points | Pearson r | sign agreement | alpha = 1, S = H_resp (in r, not in agreement) |",
        "|---|---|---|---|---|",
    ]
    for name, label in NAMES.items():
        r = result[name]
        low, high = r["pearson_interval"]
        least, most = r["agreement_interval"]
        lines.append(
            f"| {label} | {r['points']} | {r['pearson']:.2f} [{low:.2f}, {high:.2f}] "
            f"| {r['agreement']:.1%} [{least:.1%}, {most:.1%}] | {r['silent']}, {r['ties']} |"
        )
    paper = f"| {PAPER['pearson']} | {PAPER['agreement']:.1%} | not given |"
    return "\n".join([*lines, f"| paper, Qwen2.5-1.5B, 64 responses each | 64 {paper}", ""])


def draw(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Writes one scatter plot a way; the vertical axis is logarithmic beyond 0.1 nats, as S has a long tail."""
    figure, panels = plt.subplots(1, 2, figsize=(10.4, 4.8), layout="constrained", sharey=True)
    for axes, (name, label) in zip(panels, NAMES.items(), strict=True):
        r = result[name]
        one, two = (np.ravel(r[key]) for key in ("alpha_minus_1", "minus_relative_surprisal"))
        known, agree = (one != 0) & (two != 0), np.sign(one) == np.sign(two)
        look = {"s": 24, "alpha": 0.75} if name == "played" else {"s": 5, "alpha": 0.3, "linewidths": 0}
        for chosen, colour, meaning in (
            (known & agree, "tab:blue", "signs agree"),
            (known & ~agree, "tab:red", "signs differ"),
            (~known, "0.5", "alpha = 1 or S = H_resp"),
        ):
            if chosen.any():
                axes.scatter(
                    one[chosen], two[chosen], color=colour, label=f"{meaning} ({chosen.sum()})", **look
                )
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_xlabel("alpha - 1")
        text = f"{label}\nr = {r['pearson']:.2f}, signs agree {r['agreement']:.0%}"
        axes.set_title(text, loc="left", fontsize=10)
        legend = axes.legend(fontsize=9, loc="lower right", framealpha=0.9, edgecolor="none")
        for handle in legend.legend_handles:
            handle.set(sizes=[24], alpha=0.9)  # type: ignore[union-attr]
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("-(S - H_resp), nats")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 after a line on stderr that says what is wrong with the run directory."""
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
            result = study(
                config,
                parts,
                split=args.split,
                count=args.states,
                responses=args.responses,
                seed=args.seed,
            )
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    (out / "proxy_study.json").write_text(json.dumps(result, indent=1))
    text = table(result)
    (out / "proxy_study.md").write_text(text)
    draw(result, out / "proxy_study.png", title=f"{args.workdir.name}, iteration {result['iteration']}")
    print(text)
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
