"""The tables, number by number."""

from __future__ import annotations

from tools.ablation_table import against, comma_separated, markdown
from tools.outcomes import Outcome


def finished(rate: float, entropy: float, games: int = 256) -> Outcome:
    return Outcome("finished", 20, {"valid_seen": rate}, {"valid_seen": games}, entropy)


FAILED = Outcome("failed", 7, {"valid_seen": 0.99}, {"valid_seen": 256}, 0.5)
METHODS = {
    "grpo": [finished(0.4, 0.1), finished(0.5, 0.2), finished(0.6, 0.3)],
    "aem": [finished(0.9, 0.1), FAILED, Outcome("new"), finished(0.7, 0.1, games=255)],
    "one": [finished(0.25, 0.125)],
    "none": [FAILED],
}


def test_markdown() -> None:
    """t(2) = 4.302653: 50 ± 10 % gives half-widths of 24.84; t(1) = 12.706205: 80 ± 14.1 % reaches past both ends."""
    lines = markdown(METHODS, failed=("aem-seed1", "none-seed0")).splitlines()
    assert lines[:6] == [
        "| method | seeds | failed | open | valid_seen success, % | 95 % | games | entropy, nats | 95 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| grpo | 3 | 0 | 0 | 50.0 ± 10.0 | [25.2, 74.8] | 256 | 0.2000 ± 0.1000 | [-0.0484, 0.4484] |",
        "| aem | 2 | 1 | 1 | 80.0 ± 14.1 | [0.0, 100.0] | 255 to 256 | 0.1000 ± 0.0000 | [0.1000, 0.1000] |",
        "| one | 1 | 0 | 0 | 25.0 | none | 256 | 0.1250 | none |",
        "| none | 0 | 1 | 0 | none | none | none | none | none |",
    ]
    assert lines[-1] == "Failed: aem-seed1, none-seed0."


def test_against_pairs_seeds_that_both_finished() -> None:
    """Differences of 10 and 30 points: mean 20, deviation 14.1, half-width 12.706 * 10; a method without pairs."""
    methods = {
        "grpo": {0: finished(0.4, 0.1), 1: finished(0.5, 0.2), 2: FAILED},
        "aem": {0: finished(0.5, 0.2), 1: finished(0.8, 0.1), 2: finished(0.9, 0.1), 7: finished(0.9, 0.1)},
        "one": {1: finished(0.25, 0.125)},
        "none": {2: finished(0.25, 0.125)},
    }
    lines = against(methods, baseline="grpo").splitlines()
    assert (
        lines[0]
        == "| minus grpo, same seed | pairs | valid_seen success, points | 95 % | entropy, nats | 95 % |"
    )
    assert lines[2] == "| aem | 2 | +20.0 ± 14.1 | [-107.1, 147.1] | 0.0000 ± 0.1414 | [-1.2706, 1.2706] |"
    assert lines[3:5] == [
        "| one | 1 | -25.0 | none | -0.0750 | none |",
        "| none | 0 | none | none | none | none |",
    ]


def test_comma_separated() -> None:
    runs = {"aem-seed0": ("aem", 0, METHODS["aem"][0]), "aem-seed1": ("aem", 1, FAILED)}
    assert comma_separated(runs) == (
        "cell,method,seed,state,iteration,valid_seen_success,valid_seen_games,entropy\n"
        "aem-seed0,aem,0,finished,20,0.9,256,0.1\n"
        "aem-seed1,aem,1,failed,,,,\n"
    )
