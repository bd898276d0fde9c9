"""What an iteration says about itself: metrics, response records and transcripts, all on the host."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl import metrics
from rl.types import CreditedBatch, ScoredBatch, Trajectory
from sharding.transfer import to_host


def rollout_metrics(trajectories: Sequence[Trajectory], seconds: float) -> dict[str, float]:
    """`rollout/...`: success, returns, validity, lengths, speed, stop reasons. Failed episodes only count as failed."""
    played = [t for t in trajectories if not t.failed]
    turns = [turn for t in played for turn in t.turns]
    written = sum(len(turn.response_ids) for turn in turns)
    read = sum(len(turn.context_ids) for turn in turns)
    groups: dict[int, list[float]] = collections.defaultdict(list)
    for t in played:
        groups[t.draw.group].append(t.outcome)
    out = {
        "rollout/success_mean": _mean([t.success for t in played]),
        "rollout/return_mean": _mean([t.outcome for t in played]),
        "rollout/mixed_groups": _mean([max(r) > min(r) for r in groups.values()]),
        "rollout/invalid_share": _mean([not turn.valid for turn in turns]),
        "rollout/turns_mean": _mean([len(t.turns) for t in played]),
        "rollout/response_tokens_mean": written / max(1, len(turns)),
        "rollout/tokens": written + read,
        "rollout/tokens_per_s": (written + read) / max(seconds, 1e-9),
        "rollout/new_tokens_per_s": written / max(seconds, 1e-9),
        "rollout/episodes": len(played),
        "rollout/failed": len(trajectories) - len(played),
        "rollout/cut_responses": sum(turn.stop == "length" for turn in turns),
    }
    for reason, count in collections.Counter(t.stop or "none" for t in trajectories).items():
        out[f"rollout/stop_{reason}"] = count
    for kind in sorted({t.info.get("task_type", "") for t in played} - {""}):
        out[f"rollout/success_{kind}"] = _mean([t.success for t in played if t.info.get("task_type") == kind])
    return out


def mismatch(scored: ScoredBatch) -> dict[str, float]:
    """Largest and mean |logp_sampler - logp_trainer| over sampled tokens: the same weights, so only float error."""
    worst, total, count = 0.0, 0.0, 0
    for rows, old in zip(scored.batch.rows, scored.old, strict=True):
        host = to_host((rows.response_id, rows.logp_sampler, old.logp))
        sampled = host[0] >= 0
        gap = np.abs(host[1] - host[2])[sampled]
        if gap.size:
            worst, total, count = max(worst, float(gap.max())), total + float(gap.sum()), count + gap.size
    return {"max": worst, "mean": total / max(1, count)}


def credit_metrics(credited: CreditedBatch) -> dict[str, float]:
    """`policy/...`, `aem/...` and `credit/...` over the valid responses of the batch."""
    scored = credited.scored
    host = to_host(
        (
            scored.batch.responses.valid,
            scored.batch.responses.group,
            scored.entropy,
            scored.surprisal,
            credited.alpha,
        )
        + (credited.base, credited.advantage)
    )
    valid, group, entropy, surprisal, alpha, base, advantage = host
    group, entropy, surprisal, alpha = group[valid], entropy[valid], surprisal[valid], alpha[valid]
    base, advantage = base[valid], advantage[valid]
    ranges = [np.ptp(entropy[group == g]) for g in np.unique(group)]
    acting = [bool(np.any(alpha[group == g] != 1)) for g in np.unique(group)]
    trained, value, target = (x[valid] for x in to_host((credited.trained, scored.value, credited.target)))
    critic = {}
    if target.any():
        critic["credit/value_mean"] = _mean(value)
        critic["credit/value_explained"] = 1 - float(np.var(target - value) / max(np.var(target), 1e-12))
    return critic | {
        "policy/entropy_mean": _mean(entropy),
        "policy/surprisal_mean": _mean(surprisal),
        "aem/alpha_min": float(alpha.min(initial=1.0)),
        "aem/alpha_max": float(alpha.max(initial=1.0)),
        "aem/alpha_std": float(alpha.std()) if alpha.size else 0.0,
        "aem/entropy_range_mean": _mean(ranges),
        "aem/acting_groups": _mean(acting),
        "credit/advantage_abs_mean": _mean(np.abs(advantage)),
        "credit/base_abs_mean": _mean(np.abs(base)),
        "credit/responses": int(valid.sum()),
        "credit/trained_share": _mean(trained),
    }


def proxy_metrics(trajectories: Sequence[Trajectory], credited: CreditedBatch) -> dict[str, float]:
    """`credit/proxy_...`: how well alpha tells a response's surprisal from its state's mean (AEM, analysis A).

    The first responses of a group share one context, so their surprisals `S` estimate the response entropy
    `H = mean S` for nothing. Pearson's r (0 where alpha or S - H does not vary) and sign agreement of `alpha - 1` with
    `-(S - H)` over them, without those in which either is 0 up to rounding; {} where fewer than three remain.
    """
    alpha = to_host(credited.alpha)
    groups: dict[int, list[tuple[float, float]]] = collections.defaultdict(list)
    r = 0
    for trajectory in trajectories:
        if trajectory.trained and trajectory.turns:
            # All of its tokens: the trainer's mean may be that of the first few (credit.aem.first_k).
            surprisal = -float(np.sum(trajectory.turns[0].logp))
            groups[trajectory.draw.group].append((float(alpha[r]), surprisal))
            r += len(trajectory.turns)
    pairs = [
        (a, mean - s)
        for members in groups.values()
        if len(members) > 1
        for mean in [_mean([s for _, s in members])]
        for a, s in members
        if abs(a - 1) > 1e-6 and abs(mean - s) > 1e-5 * (1 + mean)
    ]
    if len(pairs) < 3:
        return {}
    one, two = np.asarray(pairs).T
    correlation = metrics.pearson(one, two)
    return {
        "credit/proxy_agreement": float(np.mean(np.sign(one - 1) == np.sign(two))),
        "credit/proxy_pearson": correlation if np.isfinite(correlation) else 0.0,
        "credit/proxy_pairs": len(pairs),
    }


def outlier_metrics(credited: CreditedBatch, updated: Any) -> dict[str, float]:
    """`outlier/...`: the share of located responses, what sets them apart, and STAPO's terms; {} where none is located.

    `outlier/high_share` is that of the located with too much entropy; `outlier/advantage_gap` the mean advantage of
    the located less that of the others.
    """
    valid, outlier, extremity, advantage, aware, independent = to_host(
        (credited.scored.batch.responses.valid, credited.outlier, credited.extremity, credited.advantage)
        + (updated.aware, updated.independent)
    )
    located, others = valid & outlier, valid & ~outlier
    if not located.any():
        return {}
    held = located & ((aware != 0) | (independent != 0))
    out = {
        "outlier/share": located.sum() / valid.sum(),
        "outlier/high_share": _mean(extremity[located] > 0),
        "outlier/advantage_mean": _mean(advantage[located]),
    }
    if others.any():
        out["outlier/advantage_gap"] = _mean(advantage[located]) - _mean(advantage[others])
    if held.any():
        out |= {"attribution/reward": _mean(aware[held]), "attribution/penalty": _mean(independent[held])}
    return {name: float(value) for name, value in out.items()}


def response_rows(
    trajectories: Sequence[Trajectory], credited: CreditedBatch, updated: Any
) -> list[dict[str, Any]]:
    """One record a response, in the order of the response table."""
    scored = credited.scored
    entropy, surprisal, alpha, base, advantage = to_host(
        (scored.entropy, scored.surprisal, credited.alpha, credited.base, credited.advantage)
    )
    normalised, outlier, aware, independent = to_host(
        (credited.normalised, credited.outlier, updated.aware, updated.independent)
    )
    rows = []
    for number, trajectory in enumerate(trajectories):
        for turn_number, turn in enumerate(trajectory.turns if trajectory.trained else ()):
            r = len(rows)
            rows.append(
                {
                    "group": trajectory.draw.group,
                    "trajectory": number,
                    "turn": turn_number,
                    "task": trajectory.draw.task,
                    "tokens": len(turn.response_ids),
                    "entropy": float(entropy[r]),
                    "surprisal": float(surprisal[r]),
                    "alpha": float(alpha[r]),
                    "advantage_before": float(base[r]),
                    "advantage_after": float(advantage[r]),
                    "normalised": float(normalised[r]),
                    "outlier": bool(outlier[r]),
                    "aware": float(aware[r]),
                    "independent": float(independent[r]),
                    "reward": turn.reward,
                    "penalty": turn.penalty,
                    "shaping": turn.shaping,
                    "step_group": turn.step_group,
                    "outcome": trajectory.outcome,
                    "success": trajectory.success,
                    "stop": turn.stop,
                    "valid": turn.valid,
                    "action": turn.action,
                    "anchor": turn.anchor,
                }
            )
    return rows


def transcripts(
    shown: Sequence[Trajectory],
    rows: Sequence[dict[str, Any]] = (),
    trajectories: Sequence[Trajectory] = (),
) -> list[dict[str, Any]]:
    """Episodes for `records.write_transcript`; with response rows, each turn carries its entropy, alpha, advantage."""
    numbers = {id(t): number for number, t in enumerate(trajectories)}
    table = {(row["trajectory"], row["turn"]): row for row in rows}
    episodes = []
    for trajectory in shown:
        turns = []
        for number, turn in enumerate(trajectory.turns):
            row = table.get((numbers.get(id(trajectory), -1), number), {})
            turns.append(
                {
                    "prompt": turn.prompt,
                    "response": turn.response,
                    "action": turn.action,
                    "valid": turn.valid,
                    "reward": turn.reward + turn.penalty,
                    "stop": turn.stop,
                    **{
                        k: row[k]
                        for k in (
                            *("entropy", "alpha", "advantage_before", "advantage_after"),
                            *("outlier", "normalised", "aware"),
                        )
                        if k in row
                    },
                }
            )
        episodes.append(
            {
                "task": trajectory.draw.task,
                "goal": trajectory.info.get("goal", ""),
                "success": trajectory.success,
                "stop": trajectory.stop,
                "return": trajectory.outcome,
                "turns": turns,
            }
        )
    return episodes


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
