"""REINFORCE++ on ALFWorld.

python main.py --config=configs/alfworld_reinforce_pp.py[:baseline]
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Hu 2025: returns normalised over the whole batch. `:baseline` subtracts the group's mean first.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "outcome",
    "credit.whiten": True,
    "objective.aggregation": "token_mean",
}


def get_config(text: str = ""):
    args = alfworld.parse(text, baseline=False)
    return alfworld.finish(args, METHOD | ({"credit.estimator": "centred"} if args.baseline else {}))
