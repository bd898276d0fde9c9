"""One cache for all end-to-end tests: games, the clone and compiled programs are made once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from rl.downloads import package_wheel

    try:
        wheel = package_wheel("alfworld", "0.4.2")
    except RuntimeError as error:
        pytest.skip(f"no source of games: {error}")
    home = tmp_path_factory.mktemp("cache")
    package = home / "packages" / "alfworld-0.4.2"
    package.mkdir(parents=True)
    (package / wheel.name).symlink_to(wheel)
    return home
