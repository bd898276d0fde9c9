"""Command lines of the smallest whole runs."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
# As small as the whole path allows; the cache directory is shared, so games and the warm start are made once.
TINY = [
    "--config.env.games.train=60",
    "--config.env.games.valid_seen=8",
    "--config.env.games.valid_unseen=8",
    "--config.model.small.width=32",
    "--config.model.small.hidden=64",
    "--config.model.small.head_size=8",
    "--config.model.small.layers=2",
    "--config.warmstart.episodes=40",
    "--config.warmstart.steps=20",
    "--config.warmstart.batch_tokens=1024",
    "--config.rollout.groups=2",
    "--config.learner.minibatch_responses=30",
    "--config.learner.row_buckets=(512,)",
    "--config.eval.games=4",
    "--config.eval.final_games=4",
    "--config.objective.kl_coef=0.01",
]


def environment(cache: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "ALFWORLD_DATA")}
    return kept | {"AGENTROPY_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
