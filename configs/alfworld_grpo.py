"""GRPO on ALFWorld.

python main.py --config=configs/alfworld_grpo.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Shao et al. 2024. What the other method files are compared with; a KL term (k3) at the papers' sizes.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {"credit.estimator": "grpo"}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD)
