"""The trainer's side of the environments: worker processes or remote servers, many slots each, never waited for twice.

  with EnvPool(name="alfworld", config=settings, workers=1, slots=16, deadline_s=60, restarts=4) as pool:
    tasks = pool.tasks("train")
    pool.reset(0, tasks[0], seed=7)             # buffered
    for event in pool.poll(timeout_s=1.0): ...   # Event(slot=0, kind="reset", observation=...)

Whatever goes wrong with an episode is an Event of kind "failed". Only what concerns the whole run is an exception:
EnvPoolError when the environment cannot be opened or workers died more often than `restarts`.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import select
import time
from typing import Any

from envs.protocol import VERSION, Event
from envs.wire import Wire, WireError

_KINDS = {"reset": "reset", "step": "step", "demonstrate": "demonstration"}
_START_S = 120.0  # least deadline of what is slow once: importing a task, listing its splits


class EnvPoolError(RuntimeError):
    """The environments cannot be played any more."""


class _Worker:
    """One wire and what is known of its slots (numbered as in the pool)."""

    def __init__(self, number: int):
        self.number = number
        self.wire: Wire | None = None
        self.opened = False
        self.ops: list[dict[str, Any]] = []  # asked for, not yet sent
        self.pending: dict[
            int, tuple[int | None, dict[str, Any]]
        ] = {}  # sent and not answered: id -> slot, op
        self.running: set[int] = set()  # slots that got an episode of this process
        self.lost: set[int] = set()  # slots whose episode died with an earlier one
        self.progress = 0.0  # when the server last sent something, or was first asked after a pause

    def limit(self, deadline_s: float) -> float:
        """When the next answer must be there."""
        slow = any(slot is None for slot, _ in self.pending.values())
        return self.progress + (max(_START_S, deadline_s) if slow else deadline_s)


class EnvPool:
    """Slots 0..slots-1, spread over `workers` processes, or over connections to the servers in `address`.

    deadline_s: how long a worker may take for one request; then it is killed with its whole group and restarted.
    restarts: how many such ends the pool survives. interpreter: another Python for the workers. token: for `address`.
    """

    def __init__(
        self,
        *,
        name: str,
        config: dict[str, Any],
        workers: int,
        slots: int,
        deadline_s: float,
        restarts: int,
        interpreter: str | None = None,
        address: list[str] | tuple[str, ...] = (),
        token: str | None = None,
    ):
        if workers < 1 or slots < 1 or deadline_s <= 0 or restarts < 0:
            raise ValueError(
                f"{workers=}, {slots=} and {deadline_s=} must be positive, {restarts=} not negative"
            )
        if address and workers < len(address):
            raise ValueError(
                f"{workers=} must be at least one for each address, of which there are {len(address)}"
            )
        self.slots, self.restarts_left = slots, restarts
        self._name, self._config, self._deadline_s = name, config, deadline_s
        self._interpreter, self._address, self._token = interpreter, list(address), token
        count = min(workers, slots)
        self._workers = [_Worker(number) for number in range(count)]  # slot s belongs to worker s % count
        self._busy: set[int] = set()  # slots that the pool owes an event
        self._events: list[Event] = []
        self._tasks: dict[str, Any] = {}  # split -> its ids, or the reply that says why there are none
        self._next = 0  # id of the last op
        self._closed = False
        self._process = os.getpid()
        atexit.register(self.close)
        try:
            for worker in self._workers:
                self._start(worker)
            while not all(worker.opened for worker in self._workers):
                self._work(1.0)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tasks(self, split: str) -> list[str]:
        """Returns the ids of a split's tasks, in their fixed order. Waits; events of slots are kept for `poll`."""
        if split not in self._tasks:
            worker = self._workers[0]
            self._ask(worker, {"op": "tasks", "split": split})
            while split not in self._tasks:
                self._work(1.0)
        if isinstance(self._tasks[split], str):
            raise EnvPoolError(
                f"environment {self._name!r} has no tasks of {split=}: {self._tasks.pop(split)}"
            )
        return list(self._tasks[split])

    def reset(self, slot: int, task: str, seed: int) -> None:
        """Asks for a new episode; whatever ran in the slot is dropped."""
        self._request(slot, {"op": "reset", "task": task, "seed": int(seed)})

    def step(self, slot: int, response: str) -> None:
        """Asks to play one response, as text."""
        self._request(slot, {"op": "step", "response": response})

    def demonstrate(self, slot: int, task: str, seed: int) -> None:
        """Asks for a whole episode of the task's expert."""
        self._request(slot, {"op": "demonstrate", "task": task, "seed": int(seed)})

    def flush(self) -> None:
        """Sends what is buffered without waiting for anything, so that workers play while the caller computes."""
        for worker in self._workers:
            if worker.ops and worker.wire is not None:
                if not worker.pending:
                    worker.progress = time.monotonic()
                worker.pending |= {op["id"]: (self._pool_slot(worker, op), op) for op in worker.ops}
                worker.wire.push(json.dumps({"ops": worker.ops}, separators=(",", ":")).encode() + b"\n")
                worker.ops = []

    def poll(self, timeout_s: float) -> list[Event]:
        """Returns the events that are there, waiting up to `timeout_s` for the first; [] at once when none is owed."""
        until = time.monotonic() + timeout_s
        self._work(0.0)
        while not self._events and self._busy and (left := until - time.monotonic()) > 0:
            self._work(left)
        events, self._events = self._events, []
        self._busy.difference_update(event.slot for event in events)
        return events

    def close(self) -> None:
        """Ends and reaps every worker: SIGTERM, then SIGKILL. Idempotent."""
        if (
            self._closed or os.getpid() != self._process
        ):  # a forked copy of the trainer does not own the workers
            return
        self._closed = True
        atexit.unregister(self.close)
        Wire.close_all([worker.wire for worker in self._workers if worker.wire is not None], patience_s=2.0)

    def _request(self, slot: int, op: dict[str, Any]) -> None:
        if not 0 <= slot < self.slots:
            raise ValueError(f"{slot=} must be in 0..{self.slots - 1}")
        if slot in self._busy:
            raise ValueError(f"{slot=} still owes the event of its last request; poll first")
        worker = self._workers[slot % len(self._workers)]
        self._ask(worker, op | {"slot": slot // len(self._workers)})
        self._busy.add(slot)
        if op["op"] != "step":
            worker.lost.discard(slot)
        elif slot in worker.lost:
            worker.ops.pop()
            self._events.append(Event(slot=slot, kind="failed", error="the episode was lost with its worker"))

    def _ask(self, worker: _Worker, op: dict[str, Any]) -> None:
        if self._closed:
            raise EnvPoolError("the pool is closed")
        self._next += 1
        worker.ops.append(op | {"id": self._next})

    def _pool_slot(self, worker: _Worker, op: dict[str, Any]) -> int | None:
        return op["slot"] * len(self._workers) + worker.number if "slot" in op else None

    def _work(self, timeout_s: float) -> None:
        """Writes what waits, reads what came within `timeout_s`, and sees to workers that are late or gone."""
        if self._closed:
            raise EnvPoolError("the pool is closed")
        before = len(self._events)
        # First a look at what is there: requests must not be sent to a worker that is known to be dead.
        self._exchange(0.0)
        self.flush()
        self._exchange(timeout_s if len(self._events) == before else 0.0)

    def _exchange(self, timeout_s: float) -> None:
        poller = select.poll()
        now = time.monotonic()
        for worker in self._workers:
            if worker.wire is not None:
                worker.wire.register(poller)
                if worker.pending:
                    timeout_s = min(timeout_s, max(0.0, worker.limit(self._deadline_s) - now))
        ready = {descriptor for descriptor, _ in poller.poll(math.ceil(timeout_s * 1000))}
        for worker in self._workers:
            wire = worker.wire
            if wire is None:
                continue
            try:
                if ready & {wire.source, wire.sink, wire.errors}:
                    received = wire.received
                    lines = wire.exchange()
                    if wire.received > received:
                        worker.progress = time.monotonic()
                    for line in lines:
                        self._take(worker, line)
                if worker.pending and time.monotonic() > worker.limit(self._deadline_s):
                    raise WireError(
                        f"no answer within {worker.limit(self._deadline_s) - worker.progress:g} s"
                    )
            except WireError as error:
                self._restart(worker, str(error))

    def _take(self, worker: _Worker, line: bytes) -> None:
        """Files one reply."""
        try:
            reply = json.loads(line)
            slot, op = worker.pending.pop(reply["id"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WireError(f"unexpected reply {line[:200]!r}") from error
        if slot is not None:
            self._events.append(Event.from_reply(slot, _KINDS[op["op"]], reply))
            if op["op"] == "reset":
                worker.running.add(slot)
        elif op["op"] == "open":
            if reply.get("kind") != "open":
                raise EnvPoolError(f"environment {self._name!r} cannot be opened: {reply.get('error')}")
            worker.opened = True
        else:
            self._tasks[op["split"]] = (
                reply["value"] if reply.get("kind") == "tasks" else str(reply.get("error"))
            )

    def _start(self, worker: _Worker) -> None:
        """Opens a wire and asks for the environment on it, before all else that is buffered."""
        try:
            if self._address:
                address = self._address[worker.number % len(self._address)]
                worker.wire = Wire.connect(
                    address, token=self._token or "", patience_s=min(30.0, self._deadline_s)
                )
            else:
                worker.wire = Wire.spawn(self._interpreter)
        except (OSError, ValueError) as error:
            raise EnvPoolError(f"worker {worker.number} cannot be started: {error}") from error
        slots = len(range(worker.number, self.slots, len(self._workers)))
        self._ask(
            worker,
            {"op": "open", "version": VERSION, "env": self._name, "config": self._config, "slots": slots},
        )
        worker.ops.insert(0, worker.ops.pop())
        worker.opened = False

    def _restart(self, worker: _Worker, reason: str) -> None:
        """Ends a worker with its group, fails what it owed, marks its other episodes lost, and starts another."""
        wire, worker.wire = worker.wire, None
        assert wire is not None
        Wire.close_all([wire], patience_s=0.0)
        reason = f"worker {worker.number}: {reason}{wire.epitaph()}"
        if not worker.opened:
            raise EnvPoolError(f"environment {self._name!r} cannot be opened: {reason}")
        if self.restarts_left == 0:
            raise EnvPoolError(f"no restarts left; set config.env.restarts; last: {reason}")
        self.restarts_left -= 1
        # A new worker can answer what was not yet sent, except steps of episodes that are gone.
        steps = [op for op in worker.ops if op["op"] == "step"]
        worker.ops = [op for op in worker.ops if op["op"] != "step"]
        unanswered = [slot for slot, _ in worker.pending.values()] + [
            self._pool_slot(worker, op) for op in steps
        ]
        if None in unanswered:
            raise EnvPoolError(f"environment {self._name!r} did not list its tasks: {reason}")
        self._events.extend(
            Event(slot=slot, kind="failed", error=reason) for slot in unanswered if slot is not None
        )
        worker.lost |= worker.running - {self._pool_slot(worker, op) for op in worker.ops}
        worker.running, worker.pending = set(), {}
        self._start(worker)
