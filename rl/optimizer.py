"""The optimizer from config: AdamW, a schedule, a clipped global norm."""

from __future__ import annotations

import optax


def schedule(
    kind: str, *, learning_rate: float, warmup: int, steps: int, end_fraction: float
) -> optax.Schedule:
    """Learning rate by optimizer step: linear warm-up from 0, then constant, linear or cosine down to a share."""
    after = max(1, steps - warmup)
    end = learning_rate * end_fraction
    shapes = {
        "constant": lambda: optax.constant_schedule(learning_rate),
        "linear": lambda: optax.linear_schedule(learning_rate, end, after),
        "cosine": lambda: optax.cosine_decay_schedule(learning_rate, after, end_fraction),
    }
    if kind not in shapes:
        raise ValueError(f"unknown optimizer.schedule={kind!r}; known: {', '.join(shapes)}")
    if not warmup:
        return shapes[kind]()
    # Step 0 already moves: a rate of 0 would waste the first batch.
    rise = optax.linear_schedule(learning_rate / (warmup + 1), learning_rate, warmup)
    return optax.join_schedules([rise, shapes[kind]()], [warmup])


def adamw(
    rate: optax.ScalarOrSchedule, *, b1: float, b2: float, eps: float, weight_decay: float, clip_norm: float
) -> optax.GradientTransformation:
    """AdamW behind global-norm clipping; weight decay spares norms and biases."""
    return optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        optax.adamw(rate, b1, b2, eps, weight_decay=weight_decay, mask=decayed),
    )


def decayed(params: dict) -> dict:
    """True for matrices. Stacked layer norms are [L, D], so the leaf's name decides, not its rank."""
    import jax

    def matrix(path: tuple, _: object) -> bool:
        names = [str(getattr(key, "key", key)) for key in path]
        return not (
            names[-1].endswith("norm") or names[-1] in ("bq", "bk", "bv", "bias") or names[0] == "final_norm"
        )

    return jax.tree_util.tree_map_with_path(matrix, params)
