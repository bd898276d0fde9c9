"""PPO on ALFWorld.

python main.py --config=configs/alfworld_ppo.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Schulman et al. 2017: a value head on the policy's activations, GAE over the responses of an episode, dual clip, values
clipped. Step rewards carry the penalties.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "gae",
    "credit.gamma": 1.0,
    "credit.gae_lam": 0.95,
    "credit.whiten": True,
    "credit.penalty": "none",
    "learner.value_head": True,
    "objective.value_coef": 0.5,
    "objective.value_clip": 0.2,
    "objective.dual_clip": 3.0,
    "objective.aggregation": "token_mean",
}

# Values are in units of the return: success pays 10 there.
PAPER = {"objective.value_clip": 2.0, "objective.value_coef": 0.005}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD, paper_method=PAPER)
