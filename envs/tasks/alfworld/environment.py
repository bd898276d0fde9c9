"""ALFWorld as a task: prompts, parsing, validity, step limit and demonstrations around an engine."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from pathlib import Path
from typing import Any, Protocol

from envs import parsing, prompts
from envs.base import Environment
from envs.protocol import Demonstration, DemoTurn, Observation, StepResult
from envs.tasks.alfworld import splits
from envs.tasks.alfworld.engine import EngineState, FastEngine, Game
from envs.tasks.alfworld.expert import ORDERS, Explorer

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_ENTITY = re.compile(r"[a-z]+ \d+")


class Engine(Protocol):
    def reset(self) -> EngineState: ...
    def step(self, command: str) -> EngineState: ...


@dataclasses.dataclass(frozen=True)
class Demo:
    """How demonstrations are made."""

    noise: float  # probability that an action is replaced by an invalid or another admissible one
    noise_weight: float  # cloning weight of a replaced action
    order: str  # listed | random: in which order the expert searches

    def __post_init__(self) -> None:
        if not 0 <= self.noise < 1 or not 0 <= self.noise_weight <= 1:
            raise ValueError(f"{self.noise=} must be in [0, 1) and {self.noise_weight=} in [0, 1]")
        if self.order not in ORDERS:
            raise ValueError(f"{self.order=} must be one of {ORDERS}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The config of this task; every field must be given."""

    data_dir: str
    engine: str  # fast | textworld
    context: str  # step | conversation
    template: str
    history: int  # earlier turns in a step prompt
    parser: str  # tags | plain
    validity: str  # format | admissible
    masked: str  # both | goal | history: what the blind text leaves out
    brief: bool  # leave out the sentence of an observation that only repeats the command
    step_limit: int
    success_reward: float
    invalid_penalty: float
    task_types: tuple[str, ...]  # names or aliases, () = all
    demo: Demo

    def __post_init__(self) -> None:
        for name, value, known in (
            ("engine", self.engine, ("fast", "textworld")),
            ("context", self.context, ("step", "conversation")),
            ("parser", self.parser, parsing.MODES),
            ("validity", self.validity, parsing.VALIDITIES),
            ("masked", self.masked, prompts.MASKS),
        ):
            if value not in known:
                raise ValueError(f"{name}={value!r} must be one of {known}; set config.env.settings.{name}")
        if self.step_limit < 1 or self.history < 0:
            raise ValueError(f"{self.step_limit=} must be at least 1 and {self.history=} not negative")
        if self.invalid_penalty > 0:
            raise ValueError(f"{self.invalid_penalty=} must not be positive")

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Settings:
        config = _exactly(cls, config, "settings")
        demo = Demo(**_exactly(Demo, config["demo"], "settings.demo"))
        return cls(**config | {"demo": demo, "task_types": splits.published_names(config["task_types"])})


class AlfworldEnvironment(Environment):
    """One seat at ALFWorld. A task id is the path of a game below json_2.1.1: "train/<task>/<trial>"."""

    def __init__(self, config: dict[str, Any]):
        super().__init__(config)
        self.settings = Settings.from_config(config)
        self.template = prompts.load(self.settings.template)
        splits.root(self.settings.data_dir)
        self._goal = self._task_type = ""
        self._engine: Engine | None = None
        self._state = EngineState("", [], False)
        self._step = 0  # turns played
        self._text = ""  # observation as shown
        self._history: list[tuple[str, str]] = []

    @classmethod
    def tasks(cls, config: dict[str, Any], split: str) -> list[str]:
        settings = Settings.from_config(config)
        return splits.list_games(settings.data_dir, split, settings.task_types)

    def reset(self, task_id: str, seed: int) -> Observation:
        """Starts a game. The world is deterministic: `seed` changes nothing here."""
        path = splits.game_path(self.settings.data_dir, task_id)
        game = _load(str(path))
        if self.settings.engine == "textworld":
            from envs.tasks.alfworld.textworld import TextWorldEngine

            self.close()
            self._engine = TextWorldEngine(path)
        else:
            self._engine = FastEngine(game)
        self._goal, self._task_type = game.goal, splits.task_type(path.parent)
        self._step, self._history = 0, []
        self._state = self._engine.reset()
        # The first observation says the goal too, which neither the blind prompt nor the anchor may know.
        self._text = self._shown(
            self._state.observation.strip().removesuffix(game.goal_sentence).removeprefix(BANNER)
        )
        return self._observe()

    def step(self, response: str) -> StepResult:
        if self._engine is None:
            raise RuntimeError("step before reset")
        settings = self.settings
        action, valid = parsing.parse(
            response, mode=settings.parser, validity=settings.validity, admissible=self._state.admissible
        )
        self._history = (
            [*self._history, (self._text, action)][-settings.history :] if settings.history else []
        )
        self._state = self._engine.step(action)
        self._text = self._shown(self._state.observation)
        self._step += 1
        success = self._state.won
        stop = "success" if success else "step_limit" if self._step >= settings.step_limit else ""
        result = StepResult(
            observation=None if stop else self._observe(),
            reward=settings.success_reward if success else 0.0,
            penalty=0.0 if valid else settings.invalid_penalty,
            done=bool(stop),
            success=success,
            action=action,
            valid=valid,
            stop=stop,
        )
        if stop:
            self.close()
        return result

    def demonstrate(self, task_id: str, seed: int) -> Demonstration:
        """Returns an episode of the exploring expert, with some of its actions replaced: after those it recovers."""
        demo = self.settings.demo
        observation: Observation | None = self.reset(task_id, seed)
        game = _load(str(splits.game_path(self.settings.data_dir, task_id)))
        expert = Explorer(game, order=demo.order, seed=seed)
        source = random.Random(seed)
        turns: list[DemoTurn] = []
        success = False
        while observation is not None:
            action, weight = expert.act(self._state.observation, self._state.admissible), 1.0
            if source.random() < demo.noise:
                action, weight = _disturb(action, self._state.admissible, source), demo.noise_weight
            response = parsing.respond(action, mode=self.settings.parser, thought=f"I should {action}.")
            turns.append(DemoTurn(observation=observation, response=response, weight=weight))
            result = self.step(response)
            observation, success = result.observation, result.success
        return Demonstration(turns=tuple(turns), success=success)

    def close(self) -> None:
        if self._engine is not None and hasattr(self._engine, "close"):
            self._engine.close()  # type: ignore[attr-defined]
        self._engine = None

    def _shown(self, text: str) -> str:
        text = text.strip()
        return _REPEATED.sub("", text) if self.settings.brief else text

    def _observe(self) -> Observation:
        """The texts of the turn that is now due."""
        step = self._step + 1
        admissible = self._state.admissible
        # "help" lists the forms of commands, which the list itself shows better.
        shown = ", ".join([command for command in admissible if command != "help"])
        if self.settings.context == "step":
            texts = self.template.step_prompts(
                goal=self._goal, history=self._history, step=step, observation=self._text, admissible=shown
            )
        else:
            texts = (
                self.template.conversation_prompt(
                    goal=self._goal, step=step, observation=self._text, admissible=shown
                ),
            )
        return Observation(
            system=self.template.system,
            prompts=texts,
            blind=self.template.blind(
                masked=self.settings.masked,
                goal=self._goal,
                history=self._history,
                step=step,
                observation=self._text,
                admissible=shown,
            ),
            anchor=self.template.anchor(observation=self._text, admissible=shown),
            info={
                "goal": self._goal,
                "observation": self._text,
                "admissible": admissible,
                "task_type": self._task_type,
                "step": step,
            },
        )


@functools.lru_cache(maxsize=256)
def _load(path: str) -> Game:
    return Game.load(Path(path))


# "You arrive at desk 1. On the desk 1, ..." -> "On the desk 1, ...": a fifth of the tokens of a turn.
_REPEATED = re.compile(
    r"^(You arrive at [^.]*\. |You open [^.]*\. |You are in the middle of a room\. )(?=\S)"
)


def _disturb(action: str, admissible: list[str], source: random.Random) -> str:
    """Returns another command than `action`: half the time an admissible one, else one that is not."""
    # `help` is left out: it answers with a page that teaches nothing.
    others = [command for command in admissible if command not in (action, "help")]
    if others and source.random() < 0.5:
        return source.choice(others)
    # As a small policy errs: the right kind of command on the wrong thing, or a door that is out of reach.
    named = [command for command in admissible if _ENTITY.search(command)]
    entities = sorted({name for command in named for name in _ENTITY.findall(command)})
    for attempt in range(16 if named else 0):
        command = source.choice(named)
        if attempt % 2 == 0:
            wrong = command.replace(source.choice(_ENTITY.findall(command)), source.choice(entities))
        else:
            wrong = f"{source.choice(('open', 'close'))} {source.choice(entities)}"
        if wrong not in admissible:
            return wrong
    return "go"


def _exactly(kind: Any, config: Any, where: str) -> dict[str, Any]:
    """Returns `config` when its keys are the fields of dataclass `kind`; ValueError names the others."""
    known = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(config, dict) or config.keys() != known:
        keys = set(config) if isinstance(config, dict) else set()
        raise ValueError(
            f"config.env.{where}: missing {sorted(known - keys)}, unknown {sorted(keys - known)}; "
            f"known: {sorted(known)}"
        )
    return dict(config)
