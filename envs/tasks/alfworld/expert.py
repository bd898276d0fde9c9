"""Experts: the shortest walkthrough, and one that explores, knowing only what an agent in its place has read."""

import random
import re
from collections.abc import Sequence

from envs.tasks.alfworld.game import Game
from envs.tasks.alfworld.plans import TREATMENTS, put_command, walkthrough

__all__ = ["ORDERS", "Explorer", "walkthrough"]

ORDERS = ("listed", "random")
_TOOLS = {"clean": ("sinkbasin", "sink"), "heat": ("microwave",), "cool": ("fridge",)}

_NAME = r"([a-z]+ \d+)"
_ROOM = re.compile(r"Looking quickly around you, you see (.*?)\.\n")
_CONTENT = re.compile(rf"(?:On the {_NAME}, |The {_NAME} is open\. In it, )you see (.*?)\.")
_CLOSED = re.compile(rf"The {_NAME} is closed\.|You close the {_NAME}\.")
_TAKEN = re.compile(rf"You pick up the {_NAME} from the {_NAME}\.")
_PUT = re.compile(rf"You (?:put|move) the {_NAME} (?:in/on|to) the {_NAME}\.")
_TREATED = re.compile(rf"You (clean|heat|cool) the {_NAME} using the {_NAME}\.")
_LISTED = re.compile(rf"\ba {_NAME}")


class Explorer:
    """Solves a game by search. It visits the receptacles one by one and opens the closed ones until it sees what the
    goal asks for, takes it, cleans, heats or cools it or brings it to the lamp, and puts it down.

    Of `game` it uses the goal and the wording alone; what is where it learns from the observations. Call `act` with
    every observation in turn, the introduction first, whether its answer is carried out or another command is: it reads
    what really happened from the next observation and goes on from there, so demonstrations with wrong commands in
    between show how to recover.

    Args:
        order: in which order receptacles are searched: "listed" as in the introduction, or "random" by `seed`.
    """

    def __init__(self, game: Game, *, order: str = "listed", seed: int = 0):
        if order not in ORDERS:
            raise ValueError(f"unknown {order=}; known: {ORDERS}")
        self._task, self._form = game.task, game.form
        self._treatment = TREATMENTS.get(game.task.kind, "")
        self._shuffle = random.Random(seed).shuffle if order == "random" else None
        self._rooms: list[str] = []  # the receptacles, in the order of the search
        self._content: dict[str, list[str]] = {}  # receptacle -> what was last seen in it
        self._closed: set[str] = set()
        self._held = ""
        self._origin = ""  # where the thing in hand came from
        self._treated: set[str] = set()
        self._placed: dict[str, str] = {}  # things put down -> where
        self._refused: set[str] = set()  # commands that proved impossible where they should be possible

    def act(self, observation: str, admissible: Sequence[str]) -> str:
        """Returns the next command, one of `admissible`, after reading `observation`."""
        self._read(observation, admissible)
        possible = frozenset(admissible)
        command = self._carry(possible) if self._held else self._fetch(possible)
        if command is None:
            command = self._search(possible)
        if command is None:  # everything seen and nothing found: memory is at fault, so look again
            self._content.clear()
            self._refused.clear()
            command = self._search(possible)
        return command if command is not None else "look"

    # --- reading

    def _read(self, observation: str, admissible: Sequence[str]) -> None:
        if not self._rooms:
            room = _ROOM.search(observation)
            self._rooms = (
                _LISTED.findall(room.group(1))
                if room
                else [
                    command.removeprefix("go to ") for command in admissible if command.startswith("go to ")
                ]
            )
            if self._shuffle:
                self._shuffle(self._rooms)
            return
        for name in _matches(_CLOSED, observation):
            self._closed.add(name)
        for plain, opened, listed in _CONTENT.findall(observation):
            self._closed.discard(plain or opened)
            self._content[plain or opened] = _LISTED.findall(listed)
        if found := _TAKEN.search(observation):
            self._held, self._origin = found.groups()
            self._placed.pop(self._held, None)
            content = self._content.get(self._origin, [])
            if self._held in content:
                content.remove(self._held)
        elif found := _PUT.search(observation):
            thing, receptacle = found.groups()
            self._held = ""
            self._placed[thing] = receptacle
            if receptacle in self._content:
                self._content[receptacle].append(thing)
        elif found := _TREATED.search(observation):
            verb, thing, _ = found.groups()
            if verb == self._treatment:
                self._treated.add(thing)
            elif {verb, self._treatment} == {"heat", "cool"}:
                self._treated.discard(thing)

    # --- deciding

    def _carry(self, possible: frozenset[str]) -> str | None:
        """The next command with something in hand; None to go on searching."""
        task, held = self._task, self._held
        if _kind(held) != task.object:
            put = "put {} in/on " if self._form == "put" else "move {} to "
            here = sorted(command for command in possible if command.startswith(put.format(held)))
            places = [
                self._origin,
                *self._rooms,
            ]  # released games keep some things where they cannot be put back
            return (
                here[0]
                if here
                else self._nearest([(name, put_command(self._form, held, name)) for name in places], possible)
            )
        if task.toggle:
            for receptacle, content in self._content.items():
                for lamp in content:
                    if _kind(lamp) == task.toggle:
                        return self._reach(receptacle, f"use {lamp}", possible)
            return None
        if self._treatment and held not in self._treated:
            tools = [name for name in self._rooms if _kind(name) in _TOOLS[self._treatment]]
            return self._nearest(
                [(tool, f"{self._treatment} {held} with {tool}") for tool in tools], possible
            )
        return self._nearest(
            [(name, put_command(self._form, held, name)) for name in self._destinations()], possible
        )

    def _fetch(self, possible: frozenset[str]) -> str | None:
        """The next command towards a thing that was seen; None when none was."""
        done = ""
        if self._task.kind == "pick_two_obj_and_place" and self._there(self._destinations()[0]):
            done = self._destinations()[0]
        return self._nearest(
            [
                (name, f"take {thing} from {name}")
                for name in self._rooms
                if name != done
                for thing in self._content.get(name, ())
                if _kind(thing) == self._task.object
            ],
            possible,
        )

    def _search(self, possible: frozenset[str]) -> str | None:
        """The next command of the search: the first receptacle whose inside was not seen."""
        lamp = bool(self._task.toggle) and _kind(self._held) == self._task.object
        for name in self._rooms:
            if name in self._content:
                continue
            if lamp and f"open {name}" in possible:
                self._closed.add(name)
            if lamp and name in self._closed:  # nobody keeps a lamp behind a door
                continue
            for command in (f"open {name}", f"go to {name}", f"examine {name}"):
                if command in possible:
                    return command
        return None

    def _destinations(self) -> list[str]:
        """Receptacles of the goal's type; one that already holds a thing of the goal comes first."""
        names = sorted(name for name in self._rooms if _kind(name) == self._task.receptacle)
        names.sort(key=self._rooms.index)
        if self._task.kind == "pick_two_obj_and_place":
            names.sort(key=lambda name: -len(self._there(name)))
            if names and self._there(names[0]):
                return names[:1]
        return names

    def _there(self, receptacle: str) -> set[str]:
        """Things of the goal's type in a receptacle."""
        things = {
            *self._content.get(receptacle, ()),
            *(o for o, r in self._placed.items() if r == receptacle),
        }
        return {thing for thing in things if _kind(thing) == self._task.object}

    def _nearest(self, choices: list[tuple[str, str]], possible: frozenset[str]) -> str | None:
        """The way to the first of (receptacle, command there), one that is possible at once before the others."""
        choices = [choice for choice in choices if choice[1] not in self._refused]
        for _, command in choices:
            if command in possible:
                return command
        for receptacle, command in choices:
            step = self._reach(receptacle, command, possible)
            if step is not None:
                return step
        return None

    def _reach(self, receptacle: str, command: str, possible: frozenset[str]) -> str | None:
        """The next step towards carrying out a command at a receptacle; None when it proved impossible there."""
        for step in (command, f"open {receptacle}", f"go to {receptacle}"):
            if step in possible:
                return step
        # At the place, and still impossible: it cannot be done, or what was remembered is wrong.
        self._refused.add(command)
        if not command.startswith("take "):
            return None
        self._content.pop(receptacle, None)
        return f"examine {receptacle}" if f"examine {receptacle}" in possible else None


def _kind(name: str) -> str:
    return name.partition(" ")[0]


def _matches(pattern: re.Pattern[str], text: str) -> list[str]:
    return [name for groups in pattern.findall(text) for name in groups if name]
