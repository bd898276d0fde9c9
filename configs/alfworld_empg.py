"""EMPG on ALFWorld.

python main.py --config=configs/alfworld_empg.py
Sizes and `seed=N`, `aem` (AEM on top) as in configs/alfworld_aem.py: `:quick`, `:smollm2`, `:paper`, `:paper_7b`.

Wang et al. 2025 (arXiv 2509.09265): GRPO's advantage scaled by the step's confidence over the batch, plus a bonus for
the clarity of the next step.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {
    "credit.estimator": "grpo",
    "credit.empg": dict(enabled=True, k=1.0, k_next=1.0, zeta=0.05),
}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD)
