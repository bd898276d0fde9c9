"""What every cell of a sweep shares: the clone it starts from, and how long it trains."""

from __future__ import annotations

# One clone for all cells, so that methods and seeds differ in reinforcement learning only. Of three it leaves room.
SHARED = {"warmstart.seed": 2}
# Twelve iterations, on the steep part of the curve, where methods can differ; the rate decays over all of them.
SMALL = SHARED | {
    "train.iterations": 12,
    "rollout.groups": 12,
    "optimizer.decay_steps": 40,
    "eval.every": 0,
    "eval.splits": ("valid_seen",),
    "eval.final_games": 256,
}
