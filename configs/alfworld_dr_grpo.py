"""Dr. GRPO on ALFWorld.

python main.py --config=configs/alfworld_dr_grpo.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Liu et al. 2025: returns centred but not scaled, token sums divided by a constant length, no KL. Advantages are as large
as returns, so the step size depends on `env.settings.success_reward`.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "centred",
    "objective.aggregation": "seq_mean_token_sum_norm",
    "objective.constant_length": 12.0,  # the response limit
    "objective.kl_coef": 0.0,
}

PAPER = {"objective.constant_length": 512.0}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD, paper_method=PAPER)
