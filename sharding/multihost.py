"""Which process does what: the only place that asks for the process index."""

from __future__ import annotations

import jax
from jax.experimental import multihost_utils


def is_writer() -> bool:
    """True in the one process that writes files and prints progress."""
    return jax.process_index() == 0


def process() -> tuple[int, int]:
    """(index of this process, number of processes)."""
    return jax.process_index(), jax.process_count()


def barrier(name: str) -> None:
    """Waits until every process has come to the barrier of this `name`; returns at once with one process."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
