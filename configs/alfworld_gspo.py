"""GSPO on ALFWorld.

python main.py --config=configs/alfworld_gspo.py[:token]
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Zheng et al. 2025: the ratio of a whole response, clipped at 3e-4 / 4e-4. `:token` takes the token form (equation 14),
which has the same value and lets advantages differ by token.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "grpo",
    "objective.surrogate": "sequence",
    "objective.clip_low": 3e-4,
    "objective.clip_high": 4e-4,
    "objective.dual_clip": 0.0,
    "objective.kl_coef": 0.0,
    "objective.entropy_coef": 0.0,
}


def get_config(text: str = ""):
    args = alfworld.parse(text, token=False)
    return alfworld.finish(args, METHOD | ({"objective.surrogate": "sequence_token"} if args.token else {}))
