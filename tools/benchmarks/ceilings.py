"""What the machine can do at most, measured where and when the contestants run: a large matrix product, a pass
over a large array.

A contestant like the others (`serve`); its result is {"flops_per_s", "bytes_per_s"} in float32, the best of a few
tries each. The product is square, its size in `spec["width"]`; the pass reads and writes `spec["megabytes"]` each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_TRIES = 5


class Ceilings:
    def __init__(self, spec: dict[str, Any]):
        width, count = spec["width"], spec["megabytes"] * 2**20 // 4
        device = jax.devices()[0]
        self.about = {"jax": jax.__version__, "device": f"{device.platform} {device.device_kind}"}
        self._matrix = jnp.ones((width, width), jnp.float32)
        self._vector = jnp.ones(count, jnp.float32)
        self._product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
        # In place: a new result would be made of fresh pages, whose first touch costs more than the copy.
        self._add = jax.jit(lambda x: x + 1, donate_argnums=0)
        _fastest(lambda: self._product(self._matrix), 1)
        _fastest(self._pass, 1)

    def _pass(self) -> jax.Array:
        self._vector = self._add(self._vector)
        return self._vector

    def run(self) -> dict[str, Any]:
        width, size = self._matrix.shape[0], self._vector.nbytes
        return {
            "flops_per_s": 2 * width**3 / _fastest(lambda: self._product(self._matrix), _TRIES),
            "bytes_per_s": 2 * size / _fastest(self._pass, _TRIES),
        }


def open_work(spec: dict[str, Any]) -> Ceilings:
    return Ceilings(spec)


def _fastest(function: Callable[[], jax.Array], tries: int) -> float:
    best = float("inf")
    for _ in range(tries):
        started = time.perf_counter()
        jax.block_until_ready(function())
        best = min(best, time.perf_counter() - started)
    return best
