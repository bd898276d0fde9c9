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
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from model import attention, cache, layers, sampling
from model.config import ModelConfig
from model.params import decode_layout
from sharding import rules

# Token ids or slot numbers, numpy's integers included.
Ids = Sequence[SupportsIndex] | np.ndarray

# What a call of `extend` costs beside its tokens, in tokens: decides when rows of unlike width are split.
CALL_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Sizes that calls are rounded up to, ascending. Each is completed by its largest possible value.

    rows: slots computed by a call; widths: prompt tokens fed per row; pasts: cache positions attended to
    (0, for calls whose rows all start from empty, is always one).
    """

    rows: tuple[int, ...] = ()
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    pasts: tuple[int, ...] = ()

    def complete(self, *, slots: int, length: int) -> Buckets:
        """These buckets with 0 and the maxima included and what is beyond them left out."""
        return Buckets(
            rows=_complete(self.rows, slots),
            widths=_complete(self.widths, length),
            pasts=(0, *_complete(self.pasts, length)),
        )


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
        self._extend = self._compile(functools.partial(_extend, **shared), outputs=3)
        self._decode = self._compile(functools.partial(_decode, **shared, chunk=self.chunk), outputs=4)

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
        for group in _groups(items, [len(ids) for ids in fed], self.buckets):
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
        past = _round_up(int(self.lengths[live].max()), self.buckets.pasts)
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
        width = _round_up(max(len(fed[i]) for i in group), self.buckets.widths)
        past = _round_up(int(self.lengths[where].max()), self.buckets.pasts)
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
        size = _round_up(wanted.size, self.buckets.rows)
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


def _extend(
    params: dict[str, Any],
    held: cache.Cache,
    rows: jax.Array | None,
    tokens: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
    seeds: jax.Array,
    temperature: jax.Array,
    *,
    past: int,
    config: ModelConfig,
    top_k: int,
    top_p: float,
    stop_ids: tuple[int, ...],
) -> tuple[cache.Cache, jax.Array, jax.Array, jax.Array]:
    """(cache, first tokens, logp, stopped) after feeding the first counts[r] of tokens [R, W] at starts[r]."""
    params = layers.cast(params, config=config)
    width = tokens.shape[1]
    old = cache.view(held, rows, past=past)
    x = rules.constrain(layers.embed(params, tokens, config=config), ("batch", "length", None))
    cos, sin = layers.rope_table(starts[:, None] + jnp.arange(width), config=config)
    causal = jnp.arange(width)[None]
    keys, values = [], []
    for index, weights in enumerate(params["layers"]):
        q, k, v = layers.heads(x, weights, cos, sin, config=config)
        k, v = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
        if index + 1 == config.layers:
            # Only the last token's activations are read: the last layer needs no other query.
            final = jnp.maximum(counts - 1, 0)[:, None]
            q, x = (jnp.take_along_axis(y, jnp.expand_dims(final, range(2, y.ndim)), axis=1) for y in (q, x))
            causal = final
        mixed = attention.cached(q, old.keys[index], old.values[index], k, v, starts, causal)
        x = rules.constrain(layers.finish(x, mixed, weights, config=config), ("batch", "length", None))
        keys.append(k)
        values.append(v)
    held = cache.merge(held, cache.Cache(tuple(keys), tuple(values)), rows, starts, counts)
    token, logp = _draw(
        params, x, seeds, jnp.zeros_like(starts), temperature, config=config, top_k=top_k, top_p=top_p
    )
    return held, token, logp, _is_stop(token, stop_ids)


def _decode(
    params: dict[str, Any],
    held: cache.Cache,
    rows: jax.Array | None,
    pending: jax.Array,
    starts: jax.Array,
    budget: jax.Array,
    seeds: jax.Array,
    made: jax.Array,
    temperature: jax.Array,
    *,
    past: int,
    chunk: int,
    config: ModelConfig,
    top_k: int,
    top_p: float,
    stop_ids: tuple[int, ...],
) -> tuple[cache.Cache, jax.Array, jax.Array, jax.Array, jax.Array]:
    """(cache, tokens [R, C], logp [R, C], counts [R], stopped [R]): row r feeds pending[r] and samples until it
    stops or has budget[r] tokens."""
    params = layers.cast(params, config=config)
    old = cache.view(held, rows, past=past)
    count = starts.shape[0]
    new = cache.empty_buffers(config, rows=count, length=chunk)

    def go_on(state: tuple[Any, ...]) -> jax.Array:
        step, *_, stopped = state
        return jnp.any((step < budget) & ~stopped)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        step, token, new, tokens, logps, counts, stopped = state
        alive = (step < budget) & ~stopped
        x = layers.embed(params, token[:, None], config=config)
        x = rules.constrain(x, ("batch", "length", None))
        cos, sin = layers.rope_table((starts + step)[:, None], config=config)
        keys, values = list(new.keys), list(new.values)
        for index, weights in enumerate(params["layers"]):
            q, k, v = layers.heads(x, weights, cos, sin, config=config)
            keys[index] = jax.lax.dynamic_update_slice_in_dim(keys[index], k.transpose(0, 2, 3, 1), step, 3)
            values[index] = jax.lax.dynamic_update_slice_in_dim(values[index], v.swapaxes(1, 2), step, 2)
            mixed = attention.cached(
                q, old.keys[index], old.values[index], keys[index], values[index], starts, step[None, None]
            )
            x = rules.constrain(layers.finish(x, mixed, weights, config=config), ("batch", "length", None))
        token, logp = _draw(
            params, x, seeds, made + step, temperature, config=config, top_k=top_k, top_p=top_p
        )
        token = jnp.where(alive, token, 0)
        tokens = jax.lax.dynamic_update_index_in_dim(tokens, jnp.where(alive, token, -1), step, 1)
        logps = jax.lax.dynamic_update_index_in_dim(logps, jnp.where(alive, logp, 0.0), step, 1)
        stopped = stopped | (alive & _is_stop(token, stop_ids))
        return (
            step + 1,
            token,
            cache.Cache(tuple(keys), tuple(values)),
            tokens,
            logps,
            counts + alive,
            stopped,
        )

    start = (
        jnp.int32(0),
        jnp.maximum(pending, 0),
        new,
        jnp.full((count, chunk), -1, jnp.int32),
        jnp.zeros((count, chunk), jnp.float32),
        jnp.zeros(count, jnp.int32),
        jnp.zeros(count, bool),
    )
    _, _, new, tokens, logps, counts, stopped = jax.lax.while_loop(go_on, body, start)
    return cache.merge(held, new, rows, starts, counts), tokens, logps, counts, stopped


def _draw(
    params: dict[str, Any],
    x: jax.Array,
    seeds: jax.Array,
    index: jax.Array,
    temperature: jax.Array,
    *,
    config: ModelConfig,
    top_k: int,
    top_p: float,
) -> tuple[jax.Array, jax.Array]:
    """(tokens, logp) of the next position of x [R, 1, D], keyed by response seed and token index."""
    hidden = layers.rms_norm(x[:, 0], params["final_norm"]["weight"], eps=config.norm_eps)
    keys = jax.vmap(lambda seed, i: jax.random.fold_in(jax.random.key(seed), i))(seeds, index)
    return sampling.sample(
        layers.logits(params, hidden), keys, temperature=temperature, top_k=top_k, top_p=top_p
    )


def _is_stop(tokens: jax.Array, stop_ids: tuple[int, ...]) -> jax.Array:
    return jnp.isin(tokens, jnp.asarray(stop_ids, jnp.int32)) if stop_ids else jnp.zeros(tokens.shape, bool)


def _groups(items: list[int], widths: list[int], buckets: Buckets) -> list[list[int]]:
    """Items in calls of similar width: the split of the sorted items that computes the fewest padded tokens."""
    items = sorted(items, key=lambda i: widths[i])
    ends = [0]  # Only the boundaries between width buckets are worth a cut.
    for n in range(1, len(items) + 1):
        if n == len(items) or _round_up(widths[items[n - 1]], buckets.widths) < widths[items[n]]:
            ends.append(n)
    best: list[tuple[int, list[int]]] = [(0, [])]
    for j in range(1, len(ends)):
        width = _round_up(widths[items[ends[j] - 1]], buckets.widths)
        options = [
            (
                best[i][0] + CALL_TOKENS + width * _round_up(ends[j] - ends[i], buckets.rows),
                [*best[i][1], ends[i]],
            )
            for i in range(j)
        ]
        best.append(min(options))
    cuts = [*best[-1][1], len(items)]
    return [items[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]


def _round_up(size: int, buckets: tuple[int, ...]) -> int:
    return next(bucket for bucket in buckets if bucket >= size)


def _complete(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    return (*sorted({size for size in sizes if 0 < size < largest}), largest)
