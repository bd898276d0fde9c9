"""A contestant's process: takes one work and runs it again and again, asked over stdin, answering over stdout.

python -m tools.benchmarks.serve MODULE

MODULE has `open_work(spec) -> Work`. Lines are JSON objects. Requests: {"op": "open", "spec": {...}}, {"op": "run"},
{"op": "close"}. Replies: {"seconds", "cpu_seconds", "compile_seconds", ...} with `about` for open and `result` for run,
or {"error": "..."}, after which the process ends. It also ends when stdin does. Nothing but replies is written to the
real stdout: what the module prints goes to stderr.

Standard library only, since it also runs inside a peer's environment. Timed from before `run` to after it has
returned with everything computed; the garbage of earlier runs is collected before.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import IO, Any, Protocol

# XLA's own compilation; tracing and lowering show only in the first run.
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class Work(Protocol):
    about: dict[str, Any]  # versions and whatever else is worth a line in the report

    def run(self) -> dict[str, Any]:
        """Does the work once and waits for it; returns what a reader can check, such as counts and losses."""
        ...


class _Compilation:
    """Seconds that jax, where the module has imported it, has compiled for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        if jax := sys.modules.get("jax"):
            jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, seconds: float, **_: Any) -> None:
        if event == _COMPILE_EVENT:
            self.seconds += seconds


def serve(module: str, requests: IO[str], replies: IO[str]) -> int:
    """Answers until `close`, the end of `requests` or an error; returns the exit status."""
    work: Work | None = None
    compilation: _Compilation | None = None

    def timed(function: Callable[[], Any]) -> tuple[dict[str, float], Any]:
        compiled = compilation.seconds if compilation else 0.0
        gc.collect()
        started, cpu = time.perf_counter(), time.process_time()
        out = function()
        took = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        return took | {"compile_seconds": compilation.seconds - compiled if compilation else 0.0}, out

    for line in requests:
        try:
            request = json.loads(line)
            if request["op"] == "close":
                return 0
            if request["op"] == "open":
                opener = importlib.import_module(module).open_work
                compilation = _Compilation()
                took, work = timed(functools.partial(opener, request["spec"]))
                assert work is not None
                reply = {**took, "about": work.about}
            elif request["op"] == "run" and work is not None:
                took, result = timed(work.run)
                reply = {**took, "result": result}
            else:
                raise ValueError(f"unexpected request {line[:200]!r}")
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
            raise
        print(json.dumps(reply), file=replies, flush=True)
    return 0


def main(argv: list[str]) -> int:
    """Moves the real stdout aside, also for code that writes to descriptor 1, and serves."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        return serve(argv[0], sys.stdin, replies)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
