"""RLOO on ALFWorld.

python main.py --config=configs/alfworld_rloo.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Ahmadian et al. 2024: the baseline of a trajectory is the mean return of the others in its group.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {"credit.estimator": "rloo", "objective.aggregation": "token_mean"}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD)
