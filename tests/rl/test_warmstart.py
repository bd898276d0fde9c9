"""Cloning: rows are the policy's own contexts, noise is shown but not imitated, and the loss goes down."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from envs.protocol import Demonstration, DemoTurn, Event, Observation
from model import params as model_params
from model.config import ModelConfig
from model.tokenizer import Tokenizer
from rl import batching, warmstart

MODEL = ModelConfig(
    vocab_size=300, width=16, layers=2, heads=2, kv_heads=1, head_size=8, hidden=32, qk_norm=True
)


def demo(weights: tuple[float, ...] = (1.0, 0.0), success: bool = True) -> Demonstration:
    turns = []
    for number, weight in enumerate(weights):
        seen = Observation(system="", prompts=(f"you see {number}",), blind="", anchor="", info={})
        turns.append(DemoTurn(observation=seen, response=f"go {number}", weight=weight))
    return Demonstration(turns=tuple(turns), success=success)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["you see 0", "you see 1", "go 0", "go 1"] * 3, vocab_size=300)


def test_conversation_rows(tokenizer: Tokenizer) -> None:
    (row,) = warmstart.rows([demo()], tokenizer, context="conversation", limit=64)
    stop = tokenizer.stop_ids[0]
    first = tokenizer.prompt("", "you see 0")
    second = tokenizer.continuation("you see 1", closed=True)
    go = [*tokenizer.encode("go 0"), stop], [*tokenizer.encode("go 1"), stop]
    assert row.tokens == [*first, *go[0], *second, *go[1]]
    kinds = [-1] * len(first) + [0] * len(go[0]) + [-1] * len(second) + [warmstart._IGNORED] * len(go[1])
    assert row.response_id == kinds


def test_step_rows_and_limit(tokenizer: Tokenizer) -> None:
    rows = warmstart.rows([demo()], tokenizer, context="step", limit=64)
    assert len(rows) == 2 and rows[1].tokens[0] == rows[0].tokens[0]
    longest = max(len(row.tokens) for row in rows)
    assert warmstart.rows([demo()], tokenizer, context="conversation", limit=longest) == []


def test_loss_weights() -> None:
    """-sum(w logp) / sum(w): 1 on imitated tokens, 0.3 on read ones, 0 on noise, first tokens and padding."""
    row = batching.Row([5, 6, 7, 8, 9], [-1, -1, 0, 0, warmstart._IGNORED], [0.0] * 5)
    (block,) = batching.microbatches([row], tokens=8, buckets=(8,))
    params = model_params.init(jax.random.key(0), MODEL)
    block = jax.tree.map(jnp.asarray, block)
    from model import scoring

    logp, _ = scoring.score(
        params, block.tokens, block.positions, block.segments, block.segments > 0, config=MODEL, block=8
    )
    value, aux = warmstart.loss(params, block, 0.3, config=MODEL, block=8, remat="none")
    weights = np.array([0, 0.3, 1, 1, 0])
    expected = -(weights * np.asarray(logp)[0, :5]).sum() / weights.sum()
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert float(aux["action_nll"]) == pytest.approx(-float(logp[0, 2] + logp[0, 3]) / 2, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("muon", [0.0, 0.02])
def test_cloning_learns(tokenizer: Tokenizer, muon: float) -> None:
    settings = ConfigDict(
        dict(
            steps=60,
            batch_tokens=64,
            learning_rate=1e-2,
            muon_learning_rate=muon,
            warmup=3,
            weight_decay=0.0,
            observation_weight=0.3,
            clip_norm=1.0,
        )
    )
    data = warmstart.rows([demo((1.0, 1.0))] * 4, tokenizer, context="conversation", limit=64)
    seen: list[float] = []
    params = warmstart.clone(
        model_params.init(jax.random.key(0), MODEL),
        data,
        settings,
        config=MODEL,
        row_buckets=(32,),
        block=64,
        remat="none",
        seed=0,
        place=lambda block: jax.tree.map(jnp.asarray, block),
        on_step=lambda _, metrics: seen.append(metrics["loss"]),
    )
    assert len(seen) == 6 and seen[-1] < 0.5 * seen[0]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_only_successful_demonstrations() -> None:
    class Pool:
        def __init__(self):
            self.asked = []

        def demonstrate(self, slot, task, seed):
            self.asked.append((slot, task, seed))

        def poll(self, timeout_s):
            events = []
            for slot, task, _ in self.asked[::-1]:
                if task == "crash":
                    events.append(Event(slot=slot, kind="failed", error="x"))
                else:
                    shown = demo(success=task != "lost")
                    events.append(Event(slot=slot, kind="demonstration", demonstration=shown))
            self.asked = []
            return events

    counted = []
    found = warmstart.demonstrations(
        Pool(), ["a", "lost", "crash", "b"], slots=2, seed=0, on_done=lambda: counted.append(1)
    )
    assert len(found) == 2 and len(counted) == 4
