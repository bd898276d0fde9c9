"""The real ALFWorld stack (alfworld, TextWorld, Fast Downward) behind the interface of `engine.FastEngine`.

It is the oracle that the fast engine is compared with, and is selected by `engine="textworld"`. It is slow (0.05-0.2 s
a step, seconds to load a kitchen) and needs the extra `[alfworld]`, which is imported when the first game is loaded.
Fast Downward keeps its state in the process: run one game per process at a time, and no threads.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from envs.tasks.alfworld.engine import EngineState


def missing() -> str:
    """Returns why the real stack cannot run here, or "" when it can."""
    try:
        _import()
    except ImportError as error:
        return f"the real ALFWorld stack is not installed ({error}); pip install 'agentropy[alfworld]'"
    return ""


class TextWorldEngine:
    """Plays one game, a file or its content, on the real stack; like FastEngine it has no step limit and plays on
    after a win. `reward` is what the stack gave for the last step."""

    def __init__(self, game: str | os.PathLike[str] | Mapping[str, Any]):
        textworld, pddl_env, demangler = _import()
        # Nothing else is requested: policy commands, above all, plan anew at every step, for minutes in a kitchen.
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self.reward = 0.0
        self._env = demangler(pddl_env(infos))
        with _arguments_kept():
            self._env.load(dict(game) if isinstance(game, Mapping) else str(game))

    def reset(self) -> EngineState:
        """Returns the introduction: the receptacles of the room and the goal."""
        self.reward = 0.0
        with _arguments_kept():
            return _state(self._env.reset())

    def step(self, command: str) -> EngineState:
        """Returns the state after a command."""
        state, reward, _ = self._env.step(command)
        self.reward = float(reward)
        return _state(state)


def _state(state: Any) -> EngineState:
    return EngineState(state["feedback"], list(state["admissible_commands"]), bool(state["won"]))


@contextlib.contextmanager
def _arguments_kept() -> Iterator[None]:
    """Fast Downward's translator overwrites `sys.argv`."""
    arguments = sys.argv
    try:
        yield
    finally:
        sys.argv = arguments


def _import() -> tuple[Any, Any, Any]:
    # alfworld makes a directory for its data when imported; nothing here reads it.
    os.environ.setdefault("ALFWORLD_DATA", os.path.join(os.path.expanduser("~"), ".cache", "alfworld"))
    import textworld  # pyright: ignore[reportMissingImports]
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # pyright: ignore[reportMissingImports]
    from textworld.envs import PddlEnv  # pyright: ignore[reportMissingImports]

    return textworld, PddlEnv, AlfredDemangler
