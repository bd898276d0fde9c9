"""The peers' own environments, made on request: a directory each with a virtual environment and the peer in it."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from rl import downloads
from tools.benchmarks.contestant import Entry

_DEADLINE_S = 3600.0
_TORCH_CPU = "https://download.pytorch.org/whl/cpu"


@dataclasses.dataclass(frozen=True)
class Peer:
    """What is installed and which module plays it."""

    name: str
    module: str
    requirements: tuple[str, ...]
    torch: bool = False  # a CPU build of torch is wanted where its index can be reached


PEERS = {
    peer.name: peer
    for peer in (
        Peer("tunix", "tools.benchmarks.tunix_peer", ("google-tunix==0.1.7", "jax==0.10.2")),
        Peer("trl", "tools.benchmarks.trl_peer", ("trl==1.16.0", "torch"), torch=True),
    )
}


def default_directory() -> Path:
    """Where the environments lie unless told otherwise: peers/ in the cache of this project."""
    return downloads.cache_root() / "peers"


def entry(peer: Peer, directory: Path) -> Entry | None:
    """The peer as a contestant, or None where it is not installed."""
    python = _python(directory / peer.name)
    return Entry(peer.name, peer.module, str(python)) if (directory / peer.name / ".done").is_file() else None


def install(peer: Peer, directory: Path, *, tell: Callable[[str], None] = print) -> Entry:
    """Makes `directory`/<name> with this interpreter and pip, unless it is complete; returns the contestant.

    Others that install at the same time wait. RuntimeError with the end of pip's output where it fails.
    """
    home = directory / peer.name
    with downloads.locked(directory):
        if not (found := entry(peer, directory)):
            tell(f"installing {', '.join(peer.requirements)} into {home}")
            _run([sys.executable, "-m", "venv", "--clear", str(home)], peer)
            index = ["--extra-index-url", _TORCH_CPU] if peer.torch and reachable(_TORCH_CPU) else []
            pip = [str(_python(home)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *peer.requirements, *index], peer)
            (home / ".done").touch()
            found = entry(peer, directory)
    assert found
    return found


def reachable(address: str, *, timeout_s: float = 5.0) -> bool:
    """Whether something listens at the host of an address. pip would try an index that is away again and again."""
    parts = urllib.parse.urlsplit(address)
    with contextlib.suppress(OSError):
        socket.create_connection((parts.hostname or "", parts.port or 443), timeout=timeout_s).close()
        return True
    return False


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _run(command: list[str], peer: Peer) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"cannot install {peer.name}: {error}") from error
    if done.returncode:
        raise RuntimeError(f"cannot install {peer.name}: {(done.stderr or done.stdout).strip()[-600:]}")
