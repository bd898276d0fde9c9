"""Random weights that every contestant loads: a Hugging Face directory, written in a process of its own (`serve`)."""

from __future__ import annotations

from typing import Any

import jax

from model import params
from model.config import ModelConfig
from model.weights import pretrained


class _Written:
    def __init__(self, spec: dict[str, Any]):
        config = ModelConfig(**spec["model"])
        tree = params.init(jax.random.key(spec["seed"]), config)
        pretrained.export(tree, config, None, spec["directory"])
        self.about = {"parameters": params.count(tree)}

    def run(self) -> dict[str, Any]:
        return {}


def open_work(spec: dict[str, Any]) -> _Written:
    """Writes `spec["directory"]`, which must not exist or be empty."""
    return _Written(spec)
