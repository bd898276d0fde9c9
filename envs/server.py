"""An environment worker: newline-delimited JSON over standard input and output; many slots in one process.

A request line is `{"ops": [op, ...]}`, played in order; each op is answered by one line, sent as soon as a few
milliseconds have passed, so that slots advance independently:

  {"id": 1, "op": "open", "version": 1, "env": "alfworld", "config": {...}, "slots": 16}   -> {"id": 1, "kind": "open"}
  {"id": 2, "op": "tasks", "split": "train"}                        -> {"id": 2, "kind": "tasks", "value": ["...", ...]}
  {"id": 3, "op": "reset", "slot": 0, "task": "...", "seed": 7}     -> {"id": 3, "kind": "reset", "value": Observation}
  {"id": 4, "op": "step", "slot": 0, "response": "go to desk 1"}    -> {"id": 4, "kind": "step", "value": StepResult}
  {"id": 5, "op": "demonstrate", "slot": 0, "task": "...", "seed": 7}       -> {"id": 5, "kind": "demonstration", ...}
  anything else                                                     -> {"id": null, "kind": "failed", "error": "..."}

`python -m envs.server` serves whoever holds its pipes; `python -m envs.server --listen HOST:PORT` (envs/listener.py)
starts one such process a client. The process ends when its input ends or its parent dies.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any

from envs import registry
from envs.base import Environment
from envs.protocol import VERSION, ProtocolError, field

MAX_LINE = 8 << 20  # bytes of one request line
MAX_SLOTS = 4096
FLUSH_S = 0.003  # replies are kept back at most this long while the next op of the same line is played
_JSON = json.JSONEncoder(
    allow_nan=False, separators=(",", ":")
)  # NaN is refused: it would poison a whole group
GRACE_S = 2.0  # for finishing what was asked for after the input has ended


class Session:
    """The slots of one client: plays ops, never raises."""

    def __init__(self, *, names: tuple[str, ...] = ()):
        self._names = names  # environments that may be opened; () = any that can be imported
        self._kind: type[Environment] | None = None
        self._config: dict[str, Any] = {}
        self._seats: list[Environment | None] = []
        self._live: list[bool] = []

    def line(self, line: bytes) -> list[Any]:
        """Returns the ops of a request line; raises ProtocolError when it is none."""
        if len(line) > MAX_LINE:
            raise ProtocolError(f"request line of {len(line)} bytes exceeds {MAX_LINE}")
        try:
            data = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"not JSON: {error}") from error
        return field(data, "ops", list)

    def reply(self, op: Any) -> bytes:
        """Returns the reply line to one op."""
        number = op.get("id") if isinstance(op, dict) else None
        number = number if type(number) is int and abs(number) < 1 << 63 else None
        try:
            kind, value = self._play(op)
            return _encode({"id": number, "kind": kind, "value": value})
        except ProtocolError as error:
            return _encode({"id": number, "kind": "failed", "error": str(error)})
        except (Exception, SystemExit) as error:  # an environment may fail in any way: that is data
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            return _encode(
                {"id": number, "kind": "failed", "error": f"{type(error).__name__}: {error} ({where})"[:2000]}
            )

    def close(self) -> None:
        for slot in range(len(self._seats)):
            self._drop(slot)

    def _play(self, op: Any) -> tuple[str, Any]:
        name = field(op, "op", str)
        if name == "step":
            slot = self._slot(op)
            response = field(op, "response", str)
            seat = self._seats[slot]
            if seat is None or not self._live[slot]:
                raise ProtocolError(f"{slot=} has no running episode; reset it first")
            self._live[slot] = False  # should `step` raise, the episode is over
            result = self._guarded(slot, lambda: seat.step(response).to_dict())
            self._live[slot] = not result["done"]
            return "step", result
        if name in ("reset", "demonstrate"):
            slot, task, seed = self._slot(op), field(op, "task", str), field(op, "seed", int)
            self._live[slot] = False
            if self._seats[slot] is None:
                assert self._kind is not None
                self._seats[slot] = self._kind(self._config)
            seat = self._seats[slot]
            assert seat is not None
            if name == "demonstrate":
                return "demonstration", self._guarded(slot, lambda: seat.demonstrate(task, seed).to_dict())
            observation = self._guarded(slot, lambda: seat.reset(task, seed).to_dict())
            self._live[slot] = True
            return "reset", observation
        if name == "tasks":
            if self._kind is None:
                raise ProtocolError("nothing is open; send 'open' first")
            return "tasks", list(self._kind.tasks(self._config, field(op, "split", str)))
        if name == "open":
            return "open", self._open(op)
        raise ProtocolError(f"unknown op {name[:80]!r}; known: open, tasks, reset, step, demonstrate")

    def _open(self, op: Any) -> None:
        version, name = field(op, "version", int), field(op, "env", str)
        config, slots = field(op, "config", dict), field(op, "slots", int)
        if version != VERSION:
            raise ProtocolError(f"{version=} of the protocol is not the server's {VERSION}")
        if not 1 <= slots <= MAX_SLOTS:
            raise ProtocolError(f"{slots=} must be in 1..{MAX_SLOTS}")
        if self._names and name not in self._names:
            raise ProtocolError(f"environment {name!r} is not served here; served: {', '.join(self._names)}")
        kind = registry.resolve(name)
        first = kind(config)  # a bad config fails here, once, and not at the first reset of every slot
        self.close()
        self._kind, self._config = kind, config
        self._seats, self._live = [first, *[None] * (slots - 1)], [False] * slots

    def _slot(self, op: Any) -> int:
        slot = field(op, "slot", int)
        if not 0 <= slot < len(self._seats):
            raise ProtocolError(f"slot {slot} out of range: {len(self._seats)} slots are open")
        return slot

    def _guarded(self, slot: int, play: Any) -> Any:
        try:
            return play()
        except BaseException:
            self._drop(slot)
            raise

    def _drop(self, slot: int) -> None:
        seat, self._seats[slot], self._live[slot] = self._seats[slot], None, False
        if seat is not None:
            try:
                seat.close()
            except Exception:
                traceback.print_exc()


class Lines:
    """Splits what is read into lines; of an oversize line no more than MAX_LINE bytes are ever kept."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Returns the complete lines; None stands for one that was too long."""
        self._buffer += data
        if b"\n" not in data:
            if len(self._buffer) > MAX_LINE:
                self._buffer.clear()
                self._skipping = True
            return []
        *complete, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        lines: list[bytes | None] = [bytes(line) if len(line) <= MAX_LINE else None for line in complete]
        if self._skipping:
            lines[0], self._skipping = None, False
        return lines


def serve(source: int, sink: int, session: Session) -> None:
    """Answers lines read from descriptor `source` on descriptor `sink` until the input ends."""
    lines = Lines()
    while data := os.read(source, 1 << 18):
        out = bytearray()
        since = time.monotonic()
        for line in lines.feed(data):
            try:
                if line is None:
                    raise ProtocolError(f"request line exceeds {MAX_LINE} bytes")
                if not line.strip():
                    continue
                ops = session.line(line)
            except ProtocolError as error:
                out += _encode({"id": None, "kind": "failed", "error": str(error)})
                continue
            for op in ops:
                out += session.reply(op)
                if time.monotonic() - since > FLUSH_S:
                    _write(sink, out)
                    out.clear()
                    since = time.monotonic()
        _write(sink, out)
    session.close()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m envs.server", description="Serves environments.")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="serve over TCP instead of standard input and output"
    )
    parser.add_argument(
        "--token-env", default="AGENTROPY_ENV_TOKEN", help="variable with the token clients must send"
    )
    parser.add_argument(
        "--serve", nargs="*", default=[], metavar="NAME", help="environments that may be opened"
    )
    parser.add_argument("--clients", type=int, default=64, help="clients at one time (TCP)")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds a client has to authenticate (TCP)"
    )
    options = parser.parse_args(argv)
    if options.listen:
        from envs import listener

        names = tuple(options.serve) or tuple(sorted(registry.ENVIRONMENTS))
        token = os.environ.get(options.token_env, "")
        listener.listen(
            options.listen, token=token, names=names, clients=options.clients, patience_s=options.patience
        )
        return
    source, sink = _take_stdio()
    _die_with_parent()
    threading.Thread(target=_watch, args=(source,), daemon=True).start()
    try:
        serve(source, sink, Session(names=tuple(options.serve)))
    except (BrokenPipeError, ConnectionError):
        pass  # the client is gone
    _end(0)


def _take_stdio() -> tuple[int, int]:
    """Moves the wire to private descriptors: stray prints go to standard error, stray reads find an empty input."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return source, sink


def _die_with_parent() -> None:
    """Ends the process group when the parent dies, even by kill -9, even while a request runs."""
    parent = os.getppid()

    def hangup(*_: Any) -> None:
        # The kernel signals when the parent's *thread* ends; that alone is no reason to go.
        if os.getppid() != parent:
            _end(1)

    signal.signal(signal.SIGHUP, hangup)
    signal.signal(signal.SIGTERM, lambda *_: _end(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGHUP)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            _end(1)


def _watch(source: int) -> None:
    """Ends the process when the other side of the wire is gone and the main thread does not notice: it may be busy."""
    poller = select.poll()
    poller.register(source, getattr(select, "POLLRDHUP", 0))  # POLLHUP and POLLERR are always reported
    while not any(events & ~select.POLLIN for _, events in poller.poll()):
        pass
    time.sleep(GRACE_S)
    _end(1)


def _end(code: int) -> None:
    """Ends this process at once, and what its environments started, where the group is its own."""
    if os.getpgrp() == os.getpid():
        own = os.getpid()
        for child in _group(own):
            if child != own:
                try:
                    os.kill(child, signal.SIGKILL)
                except OSError:
                    pass
    os._exit(code)


def _group(leader: int) -> list[int]:
    """Process ids in the group of `leader` (Linux; elsewhere none)."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdigit():
            try:
                if os.getpgid(int(name)) == leader:
                    found.append(int(name))
            except OSError:
                continue
    return found


def _write(sink: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def _encode(reply: dict[str, Any]) -> bytes:
    return _JSON.encode(reply).encode() + b"\n"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


if __name__ == "__main__":
    main()
