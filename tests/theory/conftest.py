"""Every test of the theory runs in float64: its identities are exact, and float32 would hide a wrong term."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Half a minute of enumeration: not in the fast tier."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
