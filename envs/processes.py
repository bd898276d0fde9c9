"""How workers are started and ended: own process group, scrubbed environment, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # what a worker must import from

# What a worker may know of the trainer's environment. No keys, tokens, proxies, or preloads.
ALLOWED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "ALFWORLD_DATA", "SYSTEMROOT")


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of a worker."""
    kept = {name: variables[name] for name in ALLOWED if name in variables}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def start(
    arguments: Iterable[str], *, stdin: int, stdout: int, stderr: int, interpreter: str | None = None
) -> subprocess.Popen[bytes]:
    """Starts `python -m envs.server` as the leader of a new session (Ctrl-C and killpg reach it alone)."""
    return subprocess.Popen(
        [interpreter or sys.executable, "-m", "envs.server", *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment(os.environ),
        start_new_session=True,
        close_fds=True,
    )


def end(workers: Iterable[subprocess.Popen[bytes]], *, patience_s: float) -> None:
    """Ends workers with their groups: SIGTERM, SIGKILL after `patience_s` (0: at once); returns when all are reaped."""
    left = [worker for worker in workers if worker.returncode is None]
    if patience_s > 0:
        for worker in left:
            _signal(worker, signal.SIGTERM)
        until = time.monotonic() + patience_s
        while time.monotonic() < until and not all(ended(worker) for worker in left):
            time.sleep(0.01)
    for worker in left:
        # Also the members of the group that outlived a leader that went by itself. The leader is not yet reaped, so its
        # process id, which is the group's, cannot belong to anyone else.
        _signal(worker, signal.SIGKILL)
        worker.wait()


def ended(worker: subprocess.Popen[bytes]) -> bool:
    """Whether a worker has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal(worker: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(worker.pid, number)
    except (ProcessLookupError, PermissionError):
        pass
