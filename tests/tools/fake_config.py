"""The config of fake_main.py, with the keys that the sweep's runner reads."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from configs import arguments


def get_config(text: str = "") -> Any:
    seed = arguments.parse(text, seed=0).seed
    tree = {"train": {"iterations": 3}, "eval": {"splits": ("valid_seen",)}, "level": 1.0, "fail": False}
    return arguments.lock(ConfigDict(tree | {"seed": seed}))
