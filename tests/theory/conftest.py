"""Every test of the theory runs in float64: its identities are exact, and float32 would hide a wrong term."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with jax.enable_x64():
        yield
