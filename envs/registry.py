"""The environments there are, imported only where they are played."""

from __future__ import annotations

import importlib

from envs.base import Environment

ENVIRONMENTS = {
    "alfworld": "envs.tasks.alfworld.environment:AlfworldEnvironment",
}


def resolve(name: str) -> type[Environment]:
    """Returns the environment class called `name`: a key of ENVIRONMENTS, or "module:Class"."""
    path = ENVIRONMENTS.get(name, name)
    module, colon, attribute = path.partition(":")
    if not colon:
        raise ValueError(
            f"unknown environment {name=}; known: {', '.join(sorted(ENVIRONMENTS))}, or 'module:Class'"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"environment {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ValueError(f"environment {name!r} is not a subclass of envs.base.Environment")
    return found
