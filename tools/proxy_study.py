"""Does AEM's coefficient tell a response's surprisal? AEM's analysis A (section 5.3, figure 2) on a run's checkpoint.

python -m tools.proxy_study --workdir=runs/alfworld_aem [--states=64] [--responses=64] [--split=valid_seen] [--out=DIR]

Groups are played with the checkpoint's policy at the training temperature. From all their responses `states` are drawn;
in the context of each, `responses` new ones are sampled, and the mean of their surprisals `S = -log pi` is `H_resp`.
`alpha - 1` (from the run's own scoring and credit) is held against `-(S - H_resp)` in two ways:
  played   one point a state, as in the paper: the response that was played there, alpha in its task's group
  sampled  all new responses, alpha in the group of those of one state: S is compared within states alone
S is that of the whole response, whichever tokens alpha was computed from. Points without a sign, alpha = 1 (AEM's
guard) or S = H_resp up to rounding, are counted apart from the agreement. "By chance" is the agreement of two
independent signs with the same shares: S is skewed, so most responses have S < H_resp whatever alpha is. Intervals are
bootstrapped over states.

The run directory stays as it is but for the results: proxy_study.json, proxy_study.md and proxy_study.png, in --out or
in WORKDIR/proxy_study. Keys of AEM come from the run's config, also where the run had it off.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs import arguments
from rl import batching, builder
from rl.learner import Learner
from rl.metrics import pearson
from rl.types import Draw, ScoredBatch, Trajectory, Turn
from tools import proxy_plot
from tools.reopen import reopen

Statistic = Callable[[np.ndarray, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class State:
    context: list[int]  # every id before the response
    surprisal: float  # nats, of the response that was played
    alpha: float


def signs(alpha: np.ndarray, relative: np.ndarray, entropy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the signs of `alpha - 1` and of `-(S - H_resp)`; 0 for what is nothing but rounding.

    `relative` is `-(S - H_resp)`, [states] or [states, responses] as `alpha` is; `entropy` (H_resp) is [states].
    Log-probabilities of one response under batches of unlike shape differ by some 1e-6 nats.
    """
    rounding = 1e-5 * (1 + (entropy if alpha.ndim == 1 else entropy[:, None]))
    one = np.where(np.abs(alpha - 1) > 1e-6, np.sign(alpha - 1), 0)
    return one, np.where(np.abs(relative) > rounding, np.sign(relative), 0)


def agreement(one: np.ndarray, two: np.ndarray) -> float:
    """Returns the share of equal signs, among the pairs in which neither is 0; NaN without any."""
    known = (one != 0) & (two != 0)
    return float(np.mean(one[known] == two[known])) if known.any() else float("nan")


def chance(one: np.ndarray, two: np.ndarray) -> float:
    """Returns the agreement to expect of independent signs with these shares; NaN without any."""
    known = (one != 0) & (two != 0)
    if not known.any():
        return float("nan")
    up, above = np.mean(one[known] > 0), np.mean(two[known] > 0)
    return float(up * above + (1 - up) * (1 - above))


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
    relative = (entropy if alpha.ndim == 1 else entropy[:, None]) - surprisal
    one, two = signs(alpha, relative, entropy)
    return {
        "points": one.size,
        "signed_states": int(((one != 0) & (two != 0)).reshape(len(one), -1).any(1).sum()),
        "silent": int(np.sum(one == 0)),  # alpha = 1
        "ties": int(np.sum((one != 0) & (two == 0))),  # S = H_resp where alpha is not 1
        "pearson": pearson(alpha, relative),
        "pearson_interval": bootstrap(alpha, relative, pearson, seed=seed),
        "agreement": agreement(one, two),
        "agreement_interval": bootstrap(one, two, agreement, seed=seed),
        "chance": chance(one, two),
        "alpha_minus_1": (alpha - 1).tolist(),
        "minus_relative_surprisal": relative.tolist(),
        "signs": [one.astype(int).tolist(), two.astype(int).tolist()],
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
    before = contexts(played, rollout.context)
    found = [State(context, surprisal, float(alpha[r])) for r, (context, surprisal) in enumerate(before)]
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
    changed = {f"aem.{name}": value for name, value in (aem | {"enabled": True}).items()}
    credit = arguments.overlay(credit.copy_and_resolve_references(), changed)
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
    group = crediting(parts.learner, config.credit)
    found = states(config, parts, group, split=split, count=count, seed=seed)
    sampler, params, limit = parts.rollout.sampler, parts.state.params, config.rollout.response_limit
    sampled = []
    with parts.progress.bar("states", len(found)) as advance:
        for number, state in enumerate(found):
            source = seed * 7919 + number
            sampled.append(sample(sampler, params, state.context, count=responses, limit=limit, seed=source))
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


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 1 after a line on stderr that says what is wrong with the run directory."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--states", type=int, default=64)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="default: WORKDIR/proxy_study")
    args = parser.parse_args(argv)
    if args.states < 2 or args.responses < 2:
        parser.error("--states and --responses must be at least 2")
    try:
        with reopen(args.workdir) as (config, parts):
            if args.split not in parts.tasks:
                raise ValueError(f"unknown split {args.split!r}; known: {', '.join(parts.tasks)}")
            chosen = {"split": args.split, "count": args.states, "responses": args.responses}
            result = study(config, parts, **chosen, seed=args.seed)
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("AGENTROPY_TRACEBACK"):
            raise
        print(f"error: {error}\n(AGENTROPY_TRACEBACK=1 shows where)", file=sys.stderr)
        return 1
    out = args.out or args.workdir / "proxy_study"
    out.mkdir(parents=True, exist_ok=True)
    (out / "proxy_study.json").write_text(json.dumps(_plain(result), indent=1))
    text = proxy_plot.table(result)
    (out / "proxy_study.md").write_text(text)
    proxy_plot.draw(
        result,
        out / "proxy_study.png",
        title=f"{args.workdir.absolute().name}, {args.split}, iteration {result['iteration']}",
    )
    print(text)
    print(f"written to {out}")
    return 0


def _plain(value: Any) -> Any:
    """The same with null for NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
