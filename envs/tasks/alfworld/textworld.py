"""The real ALFWorld stack (alfworld, TextWorld, Fast Downward) behind the interface of `engine.FastEngine`.

It is the oracle that the fast engine is compared with, and is selected by `engine="textworld"`. It is slow (0.05-0.2 s
a step, seconds to load a kitchen) and needs the extra `[alfworld]`, which is imported when the first game is loaded.
Each game loads its own copy of Fast Downward, so games may take turns in one process; threads break it.
"""

import contextlib
import copy
import functools
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
        self._planner: Any = pddl_env(infos)
        self._env: Any = demangler(self._planner)
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

    def close(self) -> None:
        """Unloads the game's copy of Fast Downward, which stays mapped otherwise; the engine is not used after it."""
        import fast_downward  # pyright: ignore[reportMissingImports]

        if self._planner is not None:
            fast_downward.close_lib(self._planner.downward_lib)
            self._planner = self._env = None


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


@functools.cache
def _import() -> tuple[Any, Any, Any]:
    # alfworld makes a directory for its data when imported; nothing here reads it.
    os.environ.setdefault("ALFWORLD_DATA", os.path.join(os.path.expanduser("~"), ".cache", "alfworld"))
    import textworld  # pyright: ignore[reportMissingImports]
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # pyright: ignore[reportMissingImports]
    from textworld.envs import PddlEnv  # pyright: ignore[reportMissingImports]

    _remember_parses()
    return textworld, PddlEnv, AlfredDemangler


def _remember_parses() -> None:
    """Keeps what TextWorld computes again and again from the same texts; no result changes.

    It parses the same few sentences at every step, which is most of a step's time, and translates the same problem to
    SAS four times a game, every second time for a planner that is never asked.
    """
    import fast_downward  # pyright: ignore[reportMissingImports]
    from textworld.envs.pddl import textgen  # pyright: ignore[reportMissingImports]
    from textworld.logic import Rule  # pyright: ignore[reportMissingImports]

    parse_symbols = functools.lru_cache(maxsize=4096)(textgen._parse_and_convert)

    def fresh_symbols(text: str, **options: Any) -> Any:
        return copy.deepcopy(parse_symbols(text, **options))  # deriving a sentence writes into its symbols

    textgen._parse_and_convert = fresh_symbols
    Rule.parse_conjunctive_query = functools.lru_cache(maxsize=4096)(Rule.parse_conjunctive_query)
    translate = functools.lru_cache(maxsize=2)(fast_downward.pddl2sas)

    def plain_translation(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        del optimize  # the planner's own, shorter form: only `policy_commands` needs it
        return translate(domain, problem, verbose=verbose)

    fast_downward.pddl2sas = plain_translation
