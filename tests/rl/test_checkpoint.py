"""Checkpoints: bit-exact, atomic, kept by age and score, and proof against torn and damaged files."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from rl.checkpoint import Checkpoints
from sharding.mesh import make_mesh
from sharding.rules import sharding

ROOT = Path(__file__).parents[2]
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


@struct.dataclass
class State:
    params: Any
    optimizer: Any
    step: jax.Array
    nothing: Any = None


class Words:
    """A tokenizer, as far as a checkpoint knows one."""

    def save(self, path: Any) -> None:
        Path(path).mkdir(parents=True)
        Path(path, "words.txt").write_text("a b c")


@jax.jit
def update(state: State) -> State:
    grads = jax.tree.map(lambda leaf: jnp.sin(leaf.astype(jnp.float32) * 3).astype(leaf.dtype), state.params)
    updates, optimizer = OPTIMIZER.update(grads, state.optimizer, state.params)
    return State(optax.apply_updates(state.params, updates), optimizer, state.step + 1)


@functools.cache
def make_state(steps: int) -> State:
    if steps:
        return update(make_state(steps - 1))
    rng = np.random.default_rng(0)
    params = {
        "layers": {
            "w": rng.standard_normal((8, 16), np.float32),
            "half": jnp.asarray(rng.random(16), jnp.bfloat16),
        },
        "odd": np.array([1e-45, -0.0, 3.4e38, np.pi], np.float32),
    }
    return jax.tree.map(jnp.asarray, State(params, jax.jit(OPTIMIZER.init)(params), jnp.int32(0)))


def assert_same_bits(one: Any, two: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert left.dtype == right.dtype
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, said: list[str]):
    with Checkpoints(tmp_path / "ck", keep=2, report=said.append) as out:
        yield out


def test_restore_is_bit_exact(checkpoints: Checkpoints, said: list[str]) -> None:
    state = make_state(3)
    extra = {"iteration": 3, "cursor": [1, 2], "config": {"lr": 0.1}}
    assert checkpoints.latest_step() is None
    assert checkpoints.restore(state) is None
    assert checkpoints.save(3, state, extra, tokenizer=Words())
    assert not checkpoints.save(3, make_state(1), {})  # committed already: left as it is
    for like in (state, jax.eval_shape(lambda: state)):
        restored = checkpoints.restore(like)
        assert restored is not None
        assert (restored[0], restored[2]) == (3, extra)
        assert_same_bits(restored[1], state)
    assert checkpoints.extra(3) == extra
    assert (checkpoints.tokenizer_path(3) / "words.txt").read_text() == "a b c"
    assert said == []


def test_training_goes_on_as_if_uninterrupted(checkpoints: Checkpoints) -> None:
    checkpoints.save(2, make_state(2), {})
    restored = checkpoints.restore(make_state(0))
    assert restored is not None
    assert_same_bits(update(restored[1]), make_state(3))


def test_restore_onto_another_mesh(checkpoints: Checkpoints) -> None:
    mesh = make_mesh(2, 4, 1)
    state = make_state(1)
    checkpoints.save(1, state, {})
    target = sharding(mesh, ("embed", "mlp"), (8, 16))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    like.params["layers"]["w"] = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=target)
    restored = checkpoints.restore(like)
    assert restored is not None
    assert restored[1].params["layers"]["w"].sharding == target
    assert_same_bits(restored[1], state)
    checkpoints.save(2, restored[1], {})  # and back from shards
    again = checkpoints.restore(state)
    assert again is not None
    assert_same_bits(again[1], state)


def test_parts_can_be_restored(checkpoints: Checkpoints) -> None:
    state = make_state(1)
    checkpoints.save(1, state, {})
    restored = checkpoints.restore({"params": state.params}, partial=True)
    assert restored is not None
    assert_same_bits(restored[1]["params"], state.params)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.replace(step=jnp.zeros((2,), jnp.int32)), r"step is int32\[\], not int32\[2\]"),
        (lambda s: s.replace(step=jnp.float32(0)), r"step is int32\[\], not float32\[\]"),
        (lambda s: s.replace(params=s.params | {"more": jnp.ones(2)}), r"lacks \['params.more'\]"),
        (
            lambda s: s.replace(params={"odd": s.params["odd"]}),
            r"has \['params.layers.half', 'params.layers.w'\]",
        ),
    ],
)
def test_another_tree_is_refused(
    checkpoints: Checkpoints, change: Callable[[State], State], words: str
) -> None:
    state = make_state(0)
    checkpoints.save(1, state, {})
    with pytest.raises(ValueError, match=words):
        checkpoints.restore(change(state))


def test_last_and_best_are_kept(checkpoints: Checkpoints) -> None:
    state = make_state(0)
    for step, score in enumerate([0.1, 0.9, 0.3, None, 0.2]):
        checkpoints.save(step, state, {}, score=score)
    assert checkpoints.steps() == [1, 3, 4]


def largest(path: Path) -> Path:
    return max(
        (file for file in (path / "state").rglob("*") if file.is_file()), key=lambda file: file.stat().st_size
    )


def flip(path: Path) -> None:
    data = bytearray(largest(path).read_bytes())
    data[len(data) // 2] ^= 1
    largest(path).write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: os.truncate(largest(path), largest(path).stat().st_size // 2),
    "zero length": lambda path: largest(path).write_bytes(b""),
    "one bit": flip,
    "metadata gone": lambda path: (path / "state" / "_METADATA").unlink(),
    "state gone": lambda path: shutil.rmtree(path / "state"),
    "extra cut": lambda path: (path / "extra.json").write_text('{"a'),
    "tokenizer gone": lambda path: shutil.rmtree(path / "tokenizer"),
    "manifest empty": lambda path: (path / "manifest.json").write_bytes(b""),
    "manifest gone": lambda path: (path / "manifest.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_last_falls_back(checkpoints: Checkpoints, said: list[str], damage: str) -> None:
    for step in (1, 2):
        checkpoints.save(step, make_state(step), {"iteration": step}, tokenizer=Words())
    DAMAGES[damage](checkpoints.path(2))
    restored = checkpoints.restore(make_state(0))
    assert restored is not None
    assert restored[0] == 1
    assert restored[2] == {"iteration": 1}
    assert_same_bits(restored[1], make_state(1))
    assert len(said) == 1
    assert "step_00000002" in said[0]
    assert "passed over" in said[0]
    # The step is written again over the damage, and the good one before it is still there.
    assert checkpoints.save(2, make_state(2), {"iteration": 2})
    assert checkpoints.steps() == [1, 2]
    restored = checkpoints.restore(make_state(0))
    assert restored is not None
    assert_same_bits(restored[1], make_state(2))


def test_asked_for_step_must_be_intact(checkpoints: Checkpoints) -> None:
    checkpoints.save(1, make_state(0), {})
    flip(checkpoints.path(1))
    with pytest.raises(ValueError, match="does not match its checksum"):
        checkpoints.restore(make_state(0), step=1)
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoints.restore(make_state(0), step=7)
    assert checkpoints.restore(make_state(0)) is None


def test_asynchronous(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, asynchronous=True) as out:
        for step in range(3):
            out.save(step, make_state(step), {"step": step})
        assert out.latest_step() == 2
        out.save(3, make_state(3), {})
    assert out.steps() == [2, 3]
    with Checkpoints(tmp_path, asynchronous=True) as out:
        out.save(4, make_state(0), {}, tokenizer=object())  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="save"):
            out.wait()
        assert out.latest_step() == 3


def test_what_json_cannot_hold_writes_nothing(checkpoints: Checkpoints) -> None:
    with pytest.raises(TypeError):
        checkpoints.save(1, make_state(0), {"bad": object()})
    assert not checkpoints.directory.exists()


def test_kill_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """kill -9 while the second checkpoint is being written: the first one stands."""
    script = f"""
import os, signal, sys
import jax.numpy as jnp
from rl.checkpoint import Checkpoints

class Killer:
    def save(self, path):
        os.kill(os.getpid(), signal.SIGKILL)

checkpoints = Checkpoints({str(tmp_path)!r})
checkpoints.save(1, {{"a": jnp.arange(3.0)}}, {{"iteration": 1}})
checkpoints.save(2, {{"a": jnp.arange(3.0) + 1}}, {{"iteration": 2}}, tokenizer=Killer())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=120)
    assert done.returncode == -signal.SIGKILL
    said: list[str] = []
    with Checkpoints(tmp_path, report=said.append) as out:
        restored = out.restore({"a": jnp.zeros(3)})
        assert restored is not None
        np.testing.assert_array_equal(restored[1]["a"], [0.0, 1.0, 2.0])
        assert said == ["checkpoint step_00000002 was not finished and is passed over"]
        out.save(2, {"a": jnp.zeros(3)}, {})
        assert json.loads((tmp_path / "step_00000002" / "manifest.json").read_text())["score"] is None
