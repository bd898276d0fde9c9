"""What of AEM matters: without it, with it, its coefficients shuffled or reversed, and its two other scopes.

python -m tools.run_sweep --sweep=configs/sweeps/aem_ablations.py --workdir=runs/aem_ablations
python -m tools.run_sweep --sweep=configs/sweeps/aem_ablations.py:quick,seeds=2 --workdir=runs/aem_quick   only runs
python -m tools.run_sweep --sweep=configs/sweeps/aem_ablations.py:small --workdir=runs/aem_small   two hours, 2 cores
python -m tools.plot_runs --runs='runs/aem_ablations/*-seed*' --baseline=grpo

30 cells of about 20 minutes (40 iterations of 24 s, and evaluations) on 2 CPU cores, one after the other: 10 hours;
reckoned from single runs, not measured. All cells start from one clone (`warmstart.seed=2`: of three, one that leaves
room), so that methods and seeds differ in reinforcement learning only. `:small` is 12 iterations of 12 groups.

`:small` measured (docs/reproduction.md): every method within noise of `grpo` (49.8 %) but `aem_reverse`, 6.1 points
below it [-13.1, 0.9]. The paper, with a 1.5B model on WebShop: grpo 65.0, aem 70.6, shuffle 64.8, reverse 64.5.
"""

from __future__ import annotations

from configs import arguments
from configs.sweeps.cell import Cell, cells
from configs.sweeps.combinators import fixed, product, seeds
from configs.sweeps.sizes import SHARED, SMALL

METHODS = {
    "grpo": {"credit.aem.enabled": False},
    "aem": {"credit.aem.enabled": True},
    "aem_shuffle": {"credit.aem.enabled": True, "credit.aem.shuffle": True},
    "aem_reverse": {"credit.aem.enabled": True, "credit.aem.reverse": True},
    "aem_trajectory": {"credit.aem.enabled": True, "credit.aem.scope": "trajectory"},
    "aem_batch": {"credit.aem.enabled": True, "credit.aem.scope": "batch"},
}


def get_sweep(text: str = "") -> list[Cell]:
    """The cells; `text` is like a config's arguments: "quick", "small", "seeds=2"."""
    args = arguments.parse(text, quick=False, small=False, seeds=5)
    config = "configs/alfworld_aem.py" + (":quick" if args.quick else "")
    return cells(config, METHODS, product(seeds(args.seeds), fixed(SMALL if args.small else SHARED)))
