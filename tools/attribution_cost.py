"""What STAPO costs beside GiGPO: both stages of one iteration on the same episodes, in turns.

python -m tools.attribution_cost --workdir=runs/alfworld_stapo [--rounds=9] [--out=DIR]

Opens the run at its last checkpoint, plays the episodes of one iteration, and then scores, credits and updates them
again and again: as the run does, and without the terms of located responses (GiGPO with the same KL term). The first
pair compiles. Rollout is common to both and counts once. Writes attribution_cost.md.

The floor that it states is the share of forward and backward work which the blind contexts make if not one token of
padding were computed: a token of them goes forward and backward through the policy, and forward through the reference.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl import batching, blind, step_groups
from rl.learner import Learner
from rl.objective.attribution import AttributionSettings
from sharding.transfer import to_host
from tools.reopen import reopen

_FORWARD, _BACKWARD = 1.0, 2.0  # work of a pass over a token, in forward passes


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds are medians over `rounds`; `extra` and its quartiles are over pairs measured back to back."""

    rollout: float
    without: float  # score, credit, update
    extra: float
    low: float
    high: float
    rounds: int
    responses: int
    located: int
    held: int  # located that fit into the blocks
    blind_tokens: int
    block_tokens: int  # with padding
    tokens: int  # of the batch
    reference: bool  # whether the KL term makes the reference read the batch

    @property
    def share(self) -> float:
        """Of an iteration of the base method."""
        return self.extra / (self.rollout + self.without)

    @property
    def floor(self) -> float:
        """The least share of the learner's work, from tokens alone."""
        each = (
            _FORWARD + (_FORWARD if self.reference else 0) + _FORWARD + _BACKWARD
        )  # score, reference, update
        return self.blind_tokens * (2 * _FORWARD + _BACKWARD) / (self.tokens * each)

    @property
    def least(self) -> float:
        """That floor as a share of an iteration."""
        return self.floor * self.without / (self.rollout + self.without)


def measure(config: Any, parts: Any, *, rounds: int, tell: Callable[[str], None] = print) -> Cost:
    """Plays one iteration's episodes and times both methods on them."""
    if parts.blind is None:
        raise ValueError("the run has no terms at located responses; give a run of configs/alfworld_stapo.py")
    started = time.perf_counter()
    trajectories = parts.rollout.collect(parts.state.params, _draws(config, parts))
    first = time.perf_counter() - started
    started = time.perf_counter()
    trajectories = parts.rollout.collect(parts.state.params, _draws(config, parts))
    rollout = time.perf_counter() - started
    tell(f"rollout: {first:.1f} s with compilation, {rollout:.1f} s")
    step_groups.label(trajectories, parts.step_groups)
    stapo = parts.learner
    off = dataclasses.replace(stapo.settings, attribution=AttributionSettings())
    gigpo = Learner(stapo.config, off, stapo.tx, mesh=stapo.mesh, seed=config.seed)
    packed = batching.pack(
        trajectories,
        context=config.rollout.context,
        microbatch_tokens=config.learner.microbatch_tokens,
        row_buckets=config.learner.row_buckets,
        response_bucket=config.learner.response_bucket,
        minibatch_responses=config.learner.minibatch_responses,
        multiple=stapo.row_multiple,
    )
    batch = stapo.place(packed)
    counts: dict[str, Any] = {}
    states = [_copy(parts.state), _copy(parts.state)]

    def iterate(which: int) -> float:
        learner, begun = (gigpo, stapo)[which], time.perf_counter()
        state, credited = learner.credit(states[which], learner.score(states[which], batch), 0)
        blocks: Sequence[Any] = ()
        if which:
            located, extremity = to_host((credited.outlier & credited.trained, credited.extremity))
            made, found = blind.pack(
                trajectories,
                packed,
                located,
                extremity,
                encode=lambda turn: parts.tokenizer.prompt(turn.system, turn.blind),
                settings=parts.blind,
                multiple=stapo.row_multiple,
            )
            counts.update(found, block_tokens=sum(b.tokens.size for b in made if b is not None))
            blocks = stapo.place_blind(made)
        state, _ = learner.update(state, credited, blocks)
        jax.block_until_ready(state.params)
        # The weights go back to where they were, so that every round does the same work.
        states[which] = _copy(parts.state)
        return time.perf_counter() - begun

    for which in (0, 1):
        iterate(which)
    pairs = []
    for number in range(rounds):
        order = (0, 1) if number % 2 else (1, 0)
        took = {which: iterate(which) for which in order}
        pairs.append((took[0], took[1]))
        tell(f"round {number + 1} of {rounds}: {took[0]:.2f} s without, {took[1]:.2f} s with")
    extra = [on - without for without, on in pairs]
    low, high = np.quantile(extra, (0.25, 0.75))
    return Cost(
        rollout=rollout,
        without=statistics.median(pair[0] for pair in pairs),
        extra=statistics.median(extra),
        low=float(low),
        high=float(high),
        rounds=rounds,
        responses=int(packed.responses.valid.sum()),
        located=counts["attribution/located"],
        held=counts["attribution/located"] - counts["attribution/overflow"],
        blind_tokens=counts["attribution/blind_tokens"],
        block_tokens=counts["block_tokens"],
        tokens=int(sum((rows.segments > 0).sum() for rows in packed.rows)),
        reference=stapo.settings.objective.kl_coef != 0,
    )


def table(cost: Cost) -> str:
    """The measurement as Markdown."""
    whole = cost.rollout + cost.without
    lines = [
        "| | |",
        "|---|---|",
        f"| located responses | {cost.located} of {cost.responses} ({cost.located / cost.responses:.1%}), "
        f"{cost.held} held |",
        f"| tokens of blind contexts | {cost.blind_tokens} beside {cost.tokens} of the batch "
        f"({cost.blind_tokens / cost.tokens:.1%}), {cost.block_tokens} with padding |",
        f"| an iteration of GiGPO | {whole:.2f} s: rollout {cost.rollout:.2f}, score, credit and update "
        f"{cost.without:.2f} |",
        f"| STAPO's extra | {cost.extra:.2f} s [{cost.low:.2f}, {cost.high:.2f}] (median and quartiles of "
        f"{cost.rounds} pairs), {cost.share:.1%} of an iteration |",
        f"| floor, from tokens without padding | {cost.least:.1%} of an iteration |",
    ]
    return "\n".join(lines)


def _draws(config: Any, parts: Any) -> Any:
    from rl.trainer import Trainer

    return Trainer(config, parts).draws(groups=config.rollout.groups, drawn=0)


def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="default: the run directory")
    args = parser.parse_args(argv)
    try:
        with reopen(args.workdir) as (config, parts):
            cost = measure(config, parts, rounds=args.rounds, tell=parts.progress.message)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = table(cost)
    out = args.out or args.workdir
    out.mkdir(parents=True, exist_ok=True)
    (out / "attribution_cost.md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
