"""GiGPO on ALFWorld.

python main.py --config=configs/alfworld_gigpo.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Feng et al. 2025: the episode's advantage plus that of the step among responses that left the same observation.
Penalties are part of the step rewards and enter nowhere else.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "gigpo",
    "credit.gamma": 0.95,
    "credit.omega": 1.0,
    "credit.penalty": "none",
}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD)
