"""The results of a proxy study as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PAPER = {"pearson": 0.63, "agreement": 0.859}
NAMES = {
    "played": "played responses, alpha in their task's group",
    "sampled": "all sampled responses, alpha in their state's group",
}


def table(result: dict[str, Any]) -> str:
    """Returns the result as Markdown, beside the paper's numbers."""
    lines = [
        f"{result['states']} states of split {result['split']}, {result['responses']} responses each, "
        f"iteration {result['iteration']}; 95 % intervals over states.",
        "",
        "| | points | Pearson r | sign agreement | by chance | alpha = 1 | S = H_resp | states with a sign |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, label in NAMES.items():
        r = result[name]
        lines.append(
            f"| {label} | {r['points']} | {_shown('{:.2f}', r['pearson'], *r['pearson_interval'])} "
            f"| {_shown('{:.1%}', r['agreement'], *r['agreement_interval'])} | {_shown('{:.1%}', r['chance'])} "
            f"| {r['silent']} | {r['ties']} | {r['signed_states']} |"
        )
    lines += [
        f"| paper, Qwen2.5-1.5B | 64 | {PAPER['pearson']} | {PAPER['agreement']:.1%} | | | | |",
        "",
        "Points with alpha = 1, or else with S = H_resp, have no sign: they are in r and not in the agreement.",
    ]
    return "\n".join(lines) + "\n"


def draw(result: dict[str, Any], path: Path, *, title: str) -> None:
    """Writes a scatter plot a way. The vertical axis is logarithmic beyond 0.1 nats, as S has a long tail."""
    figure, panels = plt.subplots(1, 2, figsize=(10.8, 5.2), layout="constrained", sharey=True)
    for axes, (name, label) in zip(panels, NAMES.items(), strict=True):
        r = result[name]
        across, up = (np.ravel(r[key]) for key in ("alpha_minus_1", "minus_relative_surprisal"))
        one, two = (np.ravel(sign) for sign in r["signs"])
        known = (one != 0) & (two != 0)
        look = {"s": 24, "alpha": 0.75} if name == "played" else {"s": 14, "alpha": 0.4, "linewidths": 0}
        for chosen, colour, meaning in (
            (known & (one == two), "tab:blue", "signs agree"),
            (known & (one != two), "tab:red", "signs differ"),
            (one == 0, "0.4", "alpha = 1"),
            ((one != 0) & (two == 0), "tab:orange", "S = H_resp"),
        ):
            if chosen.any():
                meaning = f"{meaning} ({chosen.sum():,})"
                axes.scatter(across[chosen], up[chosen], color=colour, label=meaning, **look)
        axes.axhline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_yscale("symlog", linthresh=0.1)
        axes.set_xlabel("alpha - 1")
        shares = f"signs agree {_shown('{:.0%}', r['agreement'])} (by chance {_shown('{:.0%}', r['chance'])})"
        axes.set_title(f"{label}\nr = {_shown('{:.2f}', r['pearson'])}, {shares}", loc="left", fontsize=10)
        legend = axes.legend(
            fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False
        )
        for handle in legend.legend_handles:
            handle.set(sizes=[24], alpha=0.9)  # type: ignore[union-attr]
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("-(S - H_resp), nats (linear within 0.1, logarithmic beyond)")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _shown(form: str, value: float, *interval: float) -> str:
    """`0.50 [0.25, 0.75]`; "none" where there is no value."""
    if not np.isfinite(value):
        return "none"
    return form.format(value) + (f" [{', '.join(form.format(end) for end in interval)}]" if interval else "")
