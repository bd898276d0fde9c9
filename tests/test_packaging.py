"""What a new user installs: locks that agree with pyproject.toml and with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", name)[0]).lower()


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{name}.lock").read_text().splitlines()
    return {normal(line): line for line in lines if line and not line.startswith("#")}


def test_locks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    train, test = pins("train"), pins("test")
    assert train.items() <= test.items()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in test.values())
    assert {normal(line) for line in project["dependencies"]} <= train.keys()
    assert {normal(line) for line in project["optional-dependencies"]["test"]} <= test.keys()
    assert "torch" not in train  # hundreds of megabytes that only parity tests need
    assert test["jax"] == "jax==0.10.2"


def test_every_room_is_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    rooms = {file.parent.name for file in ROOT.glob("*/__init__.py")}
    assert {name.rstrip("*") for name in settings["setuptools"]["packages"]["find"]["include"]} == rooms
    assert set(settings["importlinter"]["root_packages"]) == rooms


def test_shapes_are_checked_in_tests() -> None:
    import jax.numpy as jnp

    from model import attention

    q = jnp.ones((1, 3, 2, 4))
    with pytest.raises(Exception, match="B T"):
        attention.packed(q, q, q, jnp.ones((1, 4), int))
