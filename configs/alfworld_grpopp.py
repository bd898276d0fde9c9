"""GRPO++ on ALFWorld.

python main.py --config=configs/alfworld_grpopp.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

DeepSWE's recipe (Luo et al. 2025): leave-one-out, no deviation, clip-higher, a constant length, no KL, no entropy
bonus, groups all right or all wrong rejected, episodes that ran out of context masked. Its filter also masks episodes
that reach the step limit; an ALFWorld episode fails in no other way, so only successes would be left, and no group to
learn from.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "rloo",
    "selection.reject_uniform": True,
    "selection.compact": ("context",),
    "objective.clip_high": 0.28,
    "objective.aggregation": "seq_mean_token_sum_norm",
    "objective.constant_length": 12.0,  # the response limit
    "objective.kl_coef": 0.0,
    "objective.entropy_coef": 0.0,
}

PAPER = {"objective.constant_length": 512.0}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD, paper_method=PAPER)
