"""What an iteration says about itself."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from rl import batching, records, report
from rl.learner import Updated
from rl.types import CreditedBatch, ScoredBatch, Scores, Trajectory
from tests.rl.episodes import episode


def test_rollout_metrics() -> None:
    """Failed episodes count as failed and nowhere else."""
    episodes = [
        episode(0, 0, [(3, 2), (2, 2)], reward=1.0),
        episode(0, 1, [(3, 1)], reward=0.0),
        episode(1, 0, [(3, 2)], reward=0.0),
        episode(1, 1, [(9, 9)], reward=1.0, failed="worker died"),
    ]
    episodes[3].stop = "failed"
    out = report.rollout_metrics(episodes, seconds=2.0)
    assert out["rollout/success_mean"] == pytest.approx(1 / 3)
    assert out["rollout/mixed_groups"] == 0.5  # group 1 has one member left, which cannot differ from itself
    assert out["rollout/invalid_share"] == 0.25  # odd turns are invalid in these episodes
    assert (out["rollout/episodes"], out["rollout/failed"]) == (3, 1)
    assert out["rollout/tokens"] == 11 + 7 and out["rollout/tokens_per_s"] == 9.0
    assert out["rollout/response_tokens_mean"] == 7 / 4
    assert (out["rollout/stop_step_limit"], out["rollout/stop_failed"]) == (3, 1)


def credited(logp_error: float = 0.0) -> tuple[list, CreditedBatch]:
    episodes = [episode(0, 0, [(2, 2), (1, 1)], reward=1.0), episode(0, 1, [(2, 2)])]
    batch = batching.pack(
        episodes, context="conversation", microbatch_tokens=32, row_buckets=(8,), response_bucket=4
    )
    (rows,) = batch.rows
    scores = Scores(np.where(rows.response_id >= 0, rows.logp_sampler + logp_error, 77.0), rows.logp_sampler)
    entropy = np.array([0.1, 0.5, 0.3, 99.0], np.float32)  # the last row is padding
    scored = ScoredBatch(batch, (scores,), (), entropy, entropy * 2, np.zeros_like(entropy))
    base, alpha = np.array([1, 1, -1, 9], np.float32), np.array([1.2, 0.8, 1.0, 9], np.float32)
    located = np.array([False, True, False, True])
    return episodes, CreditedBatch(
        scored,
        base,
        alpha,
        base * alpha,
        np.zeros_like(base),
        batch.responses.valid,
        np.array([-0.5, 2.5, 0.1, 9], np.float32),
        located,
        np.where(located, 0.7, 0).astype(np.float32),
    )


UPDATED = Updated({}, np.array([0, 1.5, 0, 9], np.float32), np.array([0, 0.25, 0, 9], np.float32))


def test_mismatch_reads_sampled_tokens_only() -> None:
    assert report.mismatch(credited()[1].scored) == {"max": 0.0, "mean": 0.0}
    gap = report.mismatch(credited(0.25)[1].scored)
    assert gap["max"] == pytest.approx(0.25, abs=1e-6) and gap["mean"] == pytest.approx(0.25, abs=1e-6)


def test_credit_metrics_ignore_padding() -> None:
    out = report.credit_metrics(credited()[1])
    assert out["policy/entropy_mean"] == pytest.approx(0.3)
    assert (out["aem/alpha_min"], out["aem/alpha_max"]) == (pytest.approx(0.8), pytest.approx(1.2))
    assert out["aem/entropy_range_mean"] == pytest.approx(0.4)
    assert out["aem/acting_groups"] == 1.0 and out["credit/responses"] == 3
    assert out["credit/advantage_abs_mean"] == pytest.approx((1.2 + 0.8 + 1.0) / 3)
    assert all(math.isfinite(value) for value in out.values())


def test_rows_and_transcripts_agree() -> None:
    episodes, batch = credited()
    rows = report.response_rows(episodes, batch, UPDATED)
    assert [(row["trajectory"], row["turn"]) for row in rows] == [(0, 0), (0, 1), (1, 0)]
    assert [row["alpha"] for row in rows] == pytest.approx([1.2, 0.8, 1.0])
    assert rows[1]["advantage_before"] == 1.0 and rows[1]["advantage_after"] == pytest.approx(0.8)
    shown = report.transcripts([episodes[1]], rows, episodes)
    assert shown[0]["turns"][0]["alpha"] == 1.0 and shown[0]["turns"][0]["entropy"] == pytest.approx(0.3)
    assert "alpha" not in report.transcripts([episodes[1]])[0]["turns"][0]


def test_outlier_metrics_and_marks() -> None:
    episodes, batch = credited()
    out = report.outlier_metrics(batch, UPDATED)
    assert out == pytest.approx(
        {
            "outlier/share": 1 / 3,
            "outlier/high_share": 1.0,
            "outlier/advantage_mean": 0.8,
            "outlier/advantage_gap": 0.8 - (1.2 - 1.0) / 2,
            "attribution/reward": 1.5,
            "attribution/penalty": 0.25,
        }
    )
    none = dataclasses.replace(batch, outlier=np.zeros(4, bool))
    assert report.outlier_metrics(none, UPDATED) == {}
    rows = report.response_rows(episodes, batch, UPDATED)
    assert [row["outlier"] for row in rows] == [False, True, False]
    (shown,) = report.transcripts([episodes[0]], rows, episodes)
    said = [records.numbers(turn) for turn in shown["turns"]]
    assert "OUTLIER" not in said[0] and "entropy 0.500" in said[1]
    assert "OUTLIER (H_n +2.50, R_TA 1.500)" in said[1]
    assert "OUTLIER (H_n +2.50)" in records.numbers(shown["turns"][1] | {"aware": 0.0}), "it was not computed"


def proxy(groups: list[list[tuple[int, float, float]]]) -> tuple[list[Trajectory], CreditedBatch]:
    """Groups of (tokens, alpha - 1, surprisal a token) of first responses; second ones hold numbers not to be read.

    Nor are the trainer's surprisals: with `credit.aem.first_k` they are means over a response's first tokens.
    """
    episodes, alpha, surprisal = [], [], []
    for g, members in enumerate(groups):
        for m, (tokens, push, per_token) in enumerate(members):
            played = episode(g, m, [(1, tokens), (1, 1)])
            played.turns[0].logp = [-per_token] * tokens
            episodes.append(played)
            alpha += [1 + push, 50.0]
            surprisal += [60.0 * m, 70.0]
    batch = batching.pack(
        episodes, context="step", microbatch_tokens=64, row_buckets=(8,), response_bucket=32
    )
    columns = np.full((2, batch.responses.valid.size), np.nan, np.float32)
    columns[:, : len(alpha)] = alpha, surprisal
    zeros = np.zeros_like(columns[0])
    scored = ScoredBatch(batch, (), (), zeros, columns[1], zeros)
    return episodes, CreditedBatch(
        scored, zeros, columns[0], zeros, zeros, batch.responses.valid, zeros, zeros > 0, zeros
    )


# surprisals of group 0: 1, 2, 2 about 5/3; of group 1: 1, 3 about 2; a lone member is compared with nobody
PROXY = [[(2, 0.2, 0.5), (1, -0.1, 2.0), (4, -0.1, 0.5)], [(1, -0.3, 1.0), (2, 0.3, 1.5)], [(3, 0.9, 1.0)]]


def test_proxy_metrics() -> None:
    """Against (2/3, -1/3, -1/3, 1, -1): three of five signs agree; r = -0.4 / sqrt(0.24 * 8/3)."""
    out = report.proxy_metrics(*proxy(PROXY))
    assert out["credit/proxy_pairs"] == 5
    assert out["credit/proxy_agreement"] == pytest.approx(0.6)
    assert out["credit/proxy_pearson"] == pytest.approx(-0.5, abs=1e-5)


def test_proxy_metrics_pass_over_what_has_no_row() -> None:
    """Failed and masked episodes, and those without a turn, are not in the response table."""
    episodes, batch = proxy(PROXY)
    strangers = [episode(0, 7, [(1, 9)], failed="worker died"), episode(1, 7, [(1, 9)]), episode(0, 8, [])]
    strangers[1].masked = "step_limit"
    episodes[1:1] = strangers
    assert report.proxy_metrics(episodes, batch) == report.proxy_metrics(*proxy(PROXY))


def test_proxy_metrics_are_silent_without_modulation() -> None:
    assert report.proxy_metrics(*proxy([[(n, 0.0, s) for n, _, s in members] for members in PROXY])) == {}
    assert report.proxy_metrics(*proxy(PROXY[1:])) == {}, "two pairs say nothing"
    # equal alphas: no deviation, so no correlation, and no division by it
    flat = report.proxy_metrics(*proxy([[(n, 0.1, s) for n, _, s in PROXY[0]]]))
    assert flat["credit/proxy_pearson"] == 0.0 and flat["credit/proxy_agreement"] == pytest.approx(1 / 3)
    # nor any correlation with what rounding leaves, of either
    nearly = report.proxy_metrics(*proxy([[(2, 0.1 + 2e-7 * m, 0.1 * 3**m) for m in range(4)]]))
    assert nearly["credit/proxy_pearson"] == 0.0 and nearly["credit/proxy_pairs"] == 4
    assert report.proxy_metrics(*proxy([[(3, 0.1 * (m + 1), 0.7 + 1e-9 * m) for m in range(4)]])) == {}
