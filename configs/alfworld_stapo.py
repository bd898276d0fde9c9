"""STAPO on ALFWorld (arXiv 2607.04963).

python main.py --config=configs/alfworld_stapo.py[:dynamic]
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

GiGPO's two advantages, and at responses whose entropy is an outlier among those that left the same observation a
reward for using goal and history, and a penalty for leaving the reference without them. Both coefficients at 0 are
GiGPO with a KL term. `:dynamic` adds what DAPO changed of sampling and clipping (STAPO, appendix F).
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "gigpo",
    "credit.gamma": 0.95,
    "credit.omega": 1.0,
    "credit.penalty": "none",
    "credit.outliers.enabled": True,
    "credit.outliers.localisation": "normalised",
    "credit.outliers.fence": 1.5,
    "attribution.reward_coef": 0.01,
    "attribution.penalty_coef": 0.01,
    "objective.kl_coef": 0.01,
    "objective.aggregation": "seq_mean_token_mean",
}

# Where the two papers' settings for ALFWorld differ (STAPO, appendix E.1); entropy bonus and dual clip are not STAPO's.
PAPER = {"env.settings.success_reward": 1.0, "objective.entropy_coef": 0.0, "objective.dual_clip": 0.0}

DYNAMIC = {"selection.reject_uniform": True, "objective.clip_high": 0.28}


def get_config(text: str = ""):
    args = alfworld.parse(text, dynamic=False)
    return alfworld.finish(args, METHOD | (DYNAMIC if args.dynamic else {}), paper_method=PAPER)
