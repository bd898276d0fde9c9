"""A measured process, from outside: started, asked with a deadline, and always reaped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # what a contestant must import from

# XLA sizes its pool by PJRT_NPROC (or by the CPUs it may use), the others by their own names.
_POOLS = ("PJRT_NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_TAIL = 600  # characters of stderr that an error quotes


class Lost(RuntimeError):
    """A contestant that died, broke the protocol or missed its deadline."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Who takes part: a name for the report, the module that does the work, the interpreter it runs in, and what of
    the work's spec is its own."""

    name: str
    module: str
    python: str = sys.executable
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Contestant:
    """The process of an `Entry`, in a session of its own and pinned to the first `threads` CPUs that are allowed.

    Use as a context manager: on the way out it is asked to close, killed with its group where it does not, and reaped;
    `peak_bytes` is then the maximum of its resident memory (its children's that it has waited for included).
    """

    def __init__(self, entry: Entry, *, threads: int):
        self.entry, self.peak_bytes = entry, 0
        self._buffer = b""
        self._errors = tempfile.TemporaryFile()
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [entry.python, "-m", "tools.benchmarks.serve", entry.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(os.environ, threads=threads),
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )
        if hasattr(os, "sched_setaffinity"):
            # Before it has any thread of its own, which would keep the old CPUs.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(self._process.pid, cpus()[:threads])

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
        """Sends a request and returns its reply. Raises Lost, after which the process has been ended."""
        until = time.monotonic() + deadline_s
        try:
            self._send(json.dumps(request).encode() + b"\n", until, deadline_s)
            line = self._line(until, deadline_s)
            try:
                reply = json.loads(line)
            except ValueError:
                raise Lost(f"no reply of the protocol: {line[:200]!r}") from None
            if not isinstance(reply, dict):
                raise Lost(f"no reply of the protocol: {line[:200]!r}")
            if "error" in reply:
                raise Lost(str(reply["error"]))
            return reply
        except Lost:
            self.close(patience_s=0.0)
            raise

    def close(self, *, patience_s: float = 5.0) -> None:
        """Asks the process to close, kills its group after `patience_s` and reaps it. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin and process.stdout
        try:
            process.stdin.write(b'{"op": "close"}\n')
            process.stdin.close()
        except OSError:
            pass
        until = time.monotonic() + patience_s
        while time.monotonic() < until and not _ended(process.pid):
            time.sleep(0.01)
        # Not reaped yet: the id, which is the group's, cannot be anyone else's.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        process.stdout.close()
        self._errors.close()

    def _send(self, data: bytes, until: float, deadline_s: float) -> None:
        assert self._process and self._process.stdin
        sink = self._process.stdin.fileno()
        os.set_blocking(sink, False)  # a process that does not read must not hold us
        while data:
            if not select.select([], [sink], [], max(0.0, until - time.monotonic()))[1]:
                raise Lost(f"took no request within {deadline_s:g} s")
            try:
                data = data[os.write(sink, data) :]
            except BrokenPipeError:
                raise Lost(f"died{self._epitaph()}") from None

    def _line(self, until: float, deadline_s: float) -> bytes:
        assert self._process and self._process.stdout
        source = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
                raise Lost(f"no answer within {deadline_s:g} s{self._epitaph()}")
            if not (read := os.read(source, 1 << 16)):
                raise Lost(f"died{self._epitaph()}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _epitaph(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL))
        text = self._errors.read().decode(errors="replace").strip()
        return f": {text}" if text else ""


def environment(variables: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """Returns a contestant's environment: ours, with every pool of threads limited and compilations not cached."""
    dropped = ("JAX_COMPILATION_CACHE_DIR", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in variables.items() if name not in dropped}
    return (
        kept
        | dict.fromkeys(_POOLS, str(threads))
        | {
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",  # whatever a peer would like to look up, the weights are here
            "TOKENIZERS_PARALLELISM": "false",
        }
    )


def cpus() -> Sequence[int]:
    """The CPUs that this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)


def _ended(pid: int) -> bool:
    """Whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
