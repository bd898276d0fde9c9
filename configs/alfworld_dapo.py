"""DAPO on ALFWorld.

python main.py --config=configs/alfworld_dapo.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Yu et al. 2025: clip-higher, token mean, groups all right or all wrong resampled, overlong responses penalised, no KL.
The filter looks at success; penalties enter the return that live groups compare.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "grpo",
    "credit.penalty": "return",
    "selection.reject_uniform": True,
    "selection.overlong_buffer": 4,  # tokens, of a limit of 12
    "selection.overlong_penalty": 0.1,
    "objective.clip_high": 0.28,
    "objective.aggregation": "token_mean",
    "objective.kl_coef": 0.0,
    "objective.entropy_coef": 0.0,
}

PAPER = {"selection.overlong_buffer": 128, "selection.overlong_penalty": 1.0}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD, paper_method=PAPER)
