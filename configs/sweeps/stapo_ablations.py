"""What of STAPO matters: which responses, what is hidden from them, and which penalty; against GiGPO.

python -m tools.run_sweep --sweep=configs/sweeps/stapo_ablations.py --workdir=runs/stapo_ablations
python -m tools.run_sweep --sweep=configs/sweeps/stapo_ablations.py:main --workdir=runs/stapo   STAPO and GiGPO only
python -m tools.run_sweep --sweep=configs/sweeps/stapo_ablations.py:quick,seeds=1 --workdir=runs/stapo_quick   only runs
python -m tools.plot_runs --runs='runs/stapo/*-seed*' --baseline=gigpo

Every cell has the KL term of the full context (beta = 0.01) and starts from one clone, so that methods and seeds differ
in reinforcement learning only. 13 methods of 3 seeds are 39 cells of about 20 minutes on 2 CPU cores; reckoned from
single runs, not measured. `:main` is 2 of them, 6 cells; `:small` is 12 iterations of 12 groups.

The paper's figures (Qwen2.5-1.5B, table 3 and figure 4): STAPO 92.2, by raw entropy 89.6, only the goal hidden 89.0,
only the history 90.9, without the penalty 88.3, that with a larger KL term 84.6; better the stricter the fence.
"""

from __future__ import annotations

from configs import arguments
from configs.sweeps.cell import Cell, cells
from configs.sweeps.combinators import fixed, product, seeds
from configs.sweeps.sizes import SHARED, SMALL

MAIN = {
    "gigpo": {"attribution.reward_coef": 0.0, "attribution.penalty_coef": 0.0},  # the paper's "none hidden"
    "stapo": {},
}
ABLATIONS = {
    "shannon": {"credit.outliers.localisation": "shannon"},
    "all": {"credit.outliers.localisation": "all", "attribution.rows": (8, 32)},
    "fence=0": {"credit.outliers.fence": 0.0, "attribution.rows": (4, 16)},
    "fence=0.75": {"credit.outliers.fence": 0.75},
    "fence=3": {"credit.outliers.fence": 3.0},
    "goal": {"env.settings.masked": "goal"},
    "history": {"env.settings.masked": "history"},
    "single_penalty": {"attribution.penalty_coef": 0.0},
    "global_x2": {"attribution.penalty_coef": 0.0, "objective.kl_coef": 0.02},
    "global_x5": {"attribution.penalty_coef": 0.0, "objective.kl_coef": 0.05},
    "aem_stapo": {"credit.aem.enabled": True},
}


def get_sweep(text: str = "") -> list[Cell]:
    """The cells; `text` is like a config's arguments: "main", "quick", "small", "seeds=2"."""
    args = arguments.parse(text, quick=False, small=False, main=False, seeds=3)
    config = "configs/alfworld_stapo.py" + (":quick" if args.quick else "")
    return cells(
        config,
        MAIN if args.main else MAIN | ABLATIONS,
        product(seeds(args.seeds), fixed(SMALL if args.small else SHARED)),
    )
