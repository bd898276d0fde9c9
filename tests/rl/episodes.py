"""Made-up episodes for the tests of batching, learner and report."""

from __future__ import annotations

import numpy as np

from rl.types import Draw, Trajectory, Turn


def episode(
    group: int,
    member: int,
    spans: list[tuple[int, int]],
    *,
    reward: float = 0.0,
    penalties: tuple[float, ...] = (),
    failed: str = "",
    seed: int = 0,
    vocab: int = 50,
) -> Trajectory:
    """An episode whose turns have (context, response) lengths `spans`; the reward comes at the end."""
    source = np.random.default_rng([seed, group, member])
    turns = []
    for number, (read, written) in enumerate(spans):
        turn = Turn(
            context_ids=source.integers(1, vocab, read).tolist(),
            response_ids=source.integers(1, vocab, written).tolist(),
            logp=(-source.random(written)).tolist(),
            stop="stop",
            prompt=f"prompt {number}",
            blind="",
            anchor=f"anchor {number}",
            response=f"response {number}",
            action=f"response {number}",
            valid=number % 2 == 0,
        )
        turn.penalty = penalties[number] if penalties else 0.0
        turns.append(turn)
    if turns:
        turns[-1].reward = reward
    trajectory = Trajectory(
        Draw(f"task-{group}", group, member, seed), turns, success=reward > 0, stop="step_limit"
    )
    trajectory.failed = failed
    return trajectory


def batch_of_episodes(groups: int = 3, members: int = 4) -> list[Trajectory]:
    """Ragged episodes with mixed returns in every group."""
    source = np.random.default_rng(7)
    out = []
    for group in range(groups):
        for member in range(members):
            spans = [(int(a), int(b)) for a, b in source.integers(1, 7, (int(source.integers(1, 5)), 2))]
            out.append(episode(group, member, spans, reward=float((group + member) % 2)))
    return out
