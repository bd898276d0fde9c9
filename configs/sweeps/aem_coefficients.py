"""AEM's two numbers: the strength `lam` at the paper's threshold, and the threshold (nats) at the paper's strength.

python -m tools.run_sweep --sweep=configs/sweeps/aem_coefficients.py --workdir=runs/aem_coefficients

7 settings of 3 seeds: 21 cells of about 20 minutes on 2 CPU cores, one after the other: 7 hours; reckoned from single
runs, not measured. All cells start from one clone (`warmstart.seed=0`). Of the groups of one run of 20 iterations
(seed 0), a threshold of 0.1 silences 0.3 %, 0.4 19 % and 0.5 63 %.

Expected: a broad optimum around lam = 1; at 0.25 what GRPO gives. Not measured here.
"""

from __future__ import annotations

from configs import arguments
from configs.sweeps.cell import Cell, cells
from configs.sweeps.combinators import chain, each, fixed, label, product, seeds

COEFFICIENTS = chain(
    product(each("credit.aem.lam", (0.25, 0.5, 1.0, 2.0)), each("credit.aem.threshold", (0.1,))),
    product(each("credit.aem.lam", (1.0,)), each("credit.aem.threshold", (0.0, 0.4, 0.5))),
)


def get_sweep(text: str = "") -> list[Cell]:
    """The cells; `text` is like a config's arguments: "quick" for three iterations, "seeds=2"."""
    args = arguments.parse(text, quick=False, seeds=3)
    config = "configs/alfworld_aem.py" + (":quick" if args.quick else "")
    methods = {label(row): {"credit.aem.enabled": True} | row for row in COEFFICIENTS}
    return cells(config, methods, product(seeds(args.seeds), fixed({"warmstart.seed": 0})))
