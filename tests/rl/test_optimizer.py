"""Schedules and AdamW."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rl import optimizer


def rates(kind: str, steps: list[int], **changes: float) -> list[float]:
    values = dict(learning_rate=1.0, warmup=4, steps=14, end_fraction=0.1) | changes
    schedule = optimizer.schedule(kind, **values)
    return [float(schedule(step)) for step in steps]


def test_literal_rates() -> None:
    # warm-up over 4 steps from 1/5, then 10 steps from 1 to 0.1
    np.testing.assert_allclose(rates("constant", [0, 1, 4, 100]), [0.2, 0.4, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(rates("linear", [0, 4, 9, 14, 99]), [0.2, 1, 0.55, 0.1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(rates("cosine", [4, 9, 14]), [1, 0.55, 0.1], rtol=1e-5)
    np.testing.assert_allclose(rates("linear", [0, 14], warmup=0), [1, 0.1], rtol=1e-5)


def test_unknown_schedule() -> None:
    with pytest.raises(
        ValueError, match=r"unknown optimizer\.schedule='step'; known: constant, linear, cosine"
    ):
        rates("step", [0])


@pytest.mark.slow
def test_clipping_and_decay() -> None:
    params: dict[str, Any] = {
        "layers": {"wq": jnp.ones((1, 2, 2)), "attn_norm": jnp.ones((1, 2)), "bq": jnp.ones((1, 2))}
    }
    params["final_norm"] = {"weight": jnp.ones(2)}
    tx = optimizer.adamw(0.1, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.5, clip_norm=1.0)
    zeros = {
        "layers": {k: v * 0 for k, v in params["layers"].items()},
        "final_norm": {"weight": jnp.zeros(2)},
    }
    updates: Any = tx.update(zeros, tx.init(params), params)[0]
    np.testing.assert_allclose(updates["layers"]["wq"], -0.05 * np.ones((1, 2, 2)), rtol=1e-6)
    for spared in (updates["layers"]["attn_norm"], updates["layers"]["bq"], updates["final_norm"]["weight"]):
        assert not np.any(spared)
