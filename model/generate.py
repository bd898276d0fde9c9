"""Generation on a key-value cache: slots that are extended by prompts and decoded, each at its own pace.

The cache is read-only while tokens are made: a call's new keys and values go into small buffers, all rows at the
same index, and are merged into the cache once at its end. Only the rows, the width and the filled part of the
cache that a call needs are computed, each rounded up to a bucket: one compilation per combination met.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, SupportsIndex

import jax
import numpy as np
from jax.sharding import Mesh

from model import cache, decoding
from model.buckets import Buckets, groups, round_up
from model.config import ModelConfig
from model.params import decode_layout
from sharding import rules

# Token ids or slot numbers, numpy's integers included.
Ids = Sequence[SupportsIndex] | np.ndarray


@dataclasses.dataclass(frozen=True)
class First:
    """What `extend` sampled, aligned with its `rows`: the first token of each response, its logp, whether it is
    a stop id, and `full`: the slot had no room for the prompt, nothing was fed or sampled (token -1)."""

    tokens: np.ndarray
    logp: np.ndarray
    stopped: np.ndarray
    full: np.ndarray


@dataclasses.dataclass(frozen=True)
class Chunk:
    """What `decode` sampled, by slot: tokens and logp [slots, C], of which the first counts[s] are real (-1 and 0
    beyond); stopped: the last one is a stop id; full: the slot has no room for another token."""

    tokens: np.ndarray
    logp: np.ndarray
    counts: np.ndarray
    stopped: np.ndarray
    full: np.ndarray


class Generator:
    """Owns the cache of `slots` conversations of at most `length` tokens, and the functions that fill it.

    `chunk`: most tokens one `decode` makes. `temperature` may be assigned between calls without a compilation;
    `top_k`, `top_p` and `stop_ids` are fixed. Parameters are passed to each call, in the stacked layout, and
    must not change within a response. With a `mesh` of several devices slots are split over its data axes.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int,
        length: int,
        chunk: int,
        buckets: Buckets | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        stop_ids: Ids = (),
        mesh: Mesh | None = None,
    ) -> None:
        if length > config.max_positions:
            raise ValueError(f"{length=} exceeds {config.max_positions=}; set config.rollout.length")
        self.config, self.slots, self.length = config, slots, length
        self.chunk, self.temperature = min(chunk, length), temperature
        self.mesh = mesh if mesh is not None and mesh.size > 1 else None
        self.buckets = (buckets or Buckets()).complete(slots=slots, length=length)
        if self.mesh is not None:
            shards = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
            if slots % shards:
                raise ValueError(
                    f"{slots=} must divide by {shards=} (mesh data * fsdp); set config.rollout.slots"
                )
            # A subset of slots would have to cross devices.
            self.buckets = dataclasses.replace(self.buckets, rows=(slots,))
        self._cache = cache.empty(config, slots=slots, length=length, mesh=self.mesh)
        # Host mirror of each slot: cache positions filled; last sampled token, not fed yet (-1: none); tokens
        # sampled in this response; its seed.
        self.lengths = np.zeros(slots, np.int32)
        self._pending = np.full(slots, -1, np.int32)
        self._made = np.zeros(slots, np.int32)
        self._seeds = np.zeros(slots, np.uint32)
        self._source: Any = None
        self._weights: Any = None
        self._unstack = jax.jit(decode_layout)
        shared = {
            "config": config,
            "top_k": top_k,
            "top_p": top_p,
            "stop_ids": tuple(int(x) for x in stop_ids),
        }
        self._extend = self._compile(functools.partial(decoding.extend, **shared), outputs=3)
        self._decode = self._compile(
            functools.partial(decoding.decode, **shared, chunk=self.chunk), outputs=4
        )

    def extend(
        self,
        params: dict[str, Any],
        rows: Ids,
        prompts: Sequence[Ids],
        seeds: Ids,
        *,
        restart: Sequence[Any] | np.ndarray,
    ) -> First:
        """Appends prompts[i] to slot rows[i] and samples the first token of its next response.

        A slot's previous response is already in its cache but for its last token, which is fed first; restart[i]
        empties the slot instead. seeds[i] (uint32) and the token's index in the response give the randomness.
        Raises ValueError for repeated rows, empty input and lists of unlike length.
        """
        count = len(rows)
        if not count == len(prompts) == len(seeds) == len(restart):
            raise ValueError(
                f"{count} rows, {len(prompts)} prompts, {len(seeds)} seeds, {len(restart)} restarts"
            )
        rows = [int(row) for row in rows]
        if len(set(rows)) != count:
            raise ValueError(f"{rows=} repeat a slot")
        for row, fresh in zip(rows, restart, strict=True):
            if fresh:
                self.reset(row)
        fed = [
            [*([self._pending[row]] if self._pending[row] >= 0 else []), *prompt]
            for row, prompt in zip(rows, prompts, strict=True)
        ]
        if not all(fed):
            raise ValueError("an empty prompt on an empty slot has nothing to predict from")
        first = First(
            tokens=np.full(count, -1, np.int32),
            logp=np.zeros(count, np.float32),
            stopped=np.zeros(count, bool),
            full=np.asarray(
                [self.lengths[r] + len(ids) > self.length for r, ids in zip(rows, fed, strict=True)], bool
            ),
        )
        items = [i for i in range(count) if not first.full[i]]
        for group in groups(items, [len(ids) for ids in fed], self.buckets):
            self._extend_group(params, group, rows, fed, seeds, first)
        return first

    def decode(self, params: dict[str, Any], active: np.ndarray, limits: np.ndarray) -> Chunk:
        """Up to `chunk` further tokens for the slots where `active` (bool [slots]).

        A slot ends early at a stop id, when its response has limits[s] tokens (the one from `extend` included)
        or when its cache is full; the call returns when all have ended. Slots without a response begun, or whose
        response has stopped, must not be active.
        """
        active, limits = np.asarray(active, bool), np.asarray(limits, np.int32)
        if np.any(active & (self._pending < 0)):
            raise ValueError(
                f"slots {np.flatnonzero(active & (self._pending < 0))} have no response; extend them"
            )
        out = Chunk(
            tokens=np.full((self.slots, self.chunk), -1, np.int32),
            logp=np.zeros((self.slots, self.chunk), np.float32),
            counts=np.zeros(self.slots, np.int32),
            stopped=np.zeros(self.slots, bool),
            full=active & (self.lengths >= self.length),
        )
        budget = np.minimum(limits - self._made, self.length - self.lengths)
        budget = np.where(active, np.clip(budget, 0, self.chunk), 0).astype(np.int32)
        live = np.flatnonzero(budget > 0)
        if live.size == 0:
            return out
        slots, index = self._rows(live)
        past = round_up(int(self.lengths[live].max()), self.buckets.pasts)
        arguments = (
            self._pending[slots],
            self.lengths[slots],
            budget[slots],
            self._seeds[slots],
            self._made[slots],
        )
        with self._context():
            self._cache, *results = self._decode(
                self._layout(params), self._cache, index, *arguments, np.float32(self.temperature), past=past
            )
        tokens, logp, counts, stopped = (np.asarray(x) for x in jax.device_get(results))
        out.tokens[slots], out.logp[slots], out.counts[slots], out.stopped[slots] = (
            tokens,
            logp,
            counts,
            stopped,
        )
        made = out.counts[live]
        self.lengths[live] += made
        self._made[live] += made
        self._pending[live] = out.tokens[live, made - 1]
        out.full[:] = active & ~out.stopped & (self.lengths >= self.length)
        return out

    def room(self, slot: SupportsIndex) -> int:
        """Prompt tokens that still fit into a slot, were it extended without restart."""
        return int(self.length - self.lengths[slot] - (self._pending[slot] >= 0))

    def reset(self, slot: SupportsIndex) -> None:
        """Empties a slot."""
        self.lengths[slot], self._pending[slot], self._made[slot] = 0, -1, 0

    def release(self) -> None:
        """Forgets the parameters of the last call (kept in the layout of decoding until others are passed)."""
        self._source = self._weights = None

    def compilations(self) -> int:
        """Programs compiled so far; constant once every combination of buckets has been met."""
        return self._extend._cache_size() + self._decode._cache_size()

    def _extend_group(
        self,
        params: dict[str, Any],
        group: list[int],
        rows: list[int],
        fed: list[list[Any]],
        seeds: Ids,
        first: First,
    ) -> None:
        where = np.asarray([rows[i] for i in group], np.int32)
        slots, index = self._rows(where)
        at = {int(slot): position for position, slot in enumerate(slots)}
        width = round_up(max(len(fed[i]) for i in group), self.buckets.widths)
        past = round_up(int(self.lengths[where].max()), self.buckets.pasts)
        tokens = np.zeros((slots.size, width), np.int32)
        counts = np.zeros(slots.size, np.int32)
        for i in group:
            position = at[rows[i]]
            tokens[position, : len(fed[i])], counts[position] = fed[i], len(fed[i])
            self._seeds[rows[i]] = np.uint32(seeds[i])
        arguments = tokens, self.lengths[slots], counts, self._seeds[slots]
        with self._context():
            self._cache, *results = self._extend(
                self._layout(params), self._cache, index, *arguments, np.float32(self.temperature), past=past
            )
        sampled, logp, stopped = (np.asarray(x) for x in jax.device_get(results))
        for i in group:
            position = at[rows[i]]
            first.tokens[i], first.logp[i], first.stopped[i] = (
                sampled[position],
                logp[position],
                stopped[position],
            )
            self.lengths[rows[i]] += len(fed[i])
            self._pending[rows[i]], self._made[rows[i]] = sampled[position], 1

    def _rows(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(slots computed, the same as an argument): `wanted` first, others to fill the bucket; None: all slots
        in order, which needs no copy of the cache's rows."""
        size = round_up(wanted.size, self.buckets.rows)
        if size == self.slots:
            return np.arange(self.slots), None
        # Filling rows must differ from the wanted ones: each row of the cache is written once.
        others = np.setdiff1d(np.arange(self.slots), wanted)[: size - wanted.size]
        slots = np.concatenate([wanted, others]).astype(np.int32)
        return slots, slots

    def _layout(self, params: dict[str, Any]) -> dict[str, Any]:
        if params is not self._source:
            self._weights = self._unstack(params)
            self._source = params
        return self._weights

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def _compile(self, function: Any, *, outputs: int) -> Any:
        placed = None
        if self.mesh is not None:
            held = cache.shardings(self.config, self.mesh, slots=self.slots, length=self.length)
            placed = (held, *[rules.replicated(self.mesh)] * outputs)
        return jax.jit(function, static_argnames=("past",), donate_argnums=(1,), out_shardings=placed)
