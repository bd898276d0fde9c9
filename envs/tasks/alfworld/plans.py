"""Solving a game with its state known: the shortest walkthrough."""

from collections.abc import Iterator
from itertools import permutations

from envs.tasks.alfworld.game import Game

TREATMENTS = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}


def walkthrough(game: Game) -> list[str]:
    """Returns a shortest list of commands that wins from the start; ValueError when the game cannot be won."""
    plans = [plan.commands for plan in _plans(game)]
    if not plans:
        raise ValueError(f"{game.path or 'game'}: no way to {game.goal!r}")
    return min(plans, key=len)


class _Plan:
    """Commands with the little state that decides what is needed: the place, and which doors are open."""

    def __init__(self, game: Game):
        self.game = game
        self.commands: list[str] = []
        self.place = game.start
        self.opened = set(game.opened)

    def go(self, receptacle: int, *, open: bool) -> None:
        game, name = self.game, self.game.receptacles[receptacle]
        if game.place[receptacle] != self.place:
            self.commands.append(f"go to {name}")
            self.place = game.place[receptacle]
        if open and receptacle in game.openable and receptacle not in self.opened:
            self.commands.append(f"open {name}")
            self.opened.add(receptacle)

    def take(self, thing: int, receptacle: int) -> None:
        self.go(receptacle, open=True)
        self.commands.append(f"take {self.game.objects[thing]} from {self.game.receptacles[receptacle]}")

    def put(self, thing: int, receptacle: int) -> None:
        self.go(receptacle, open=True)
        self.commands.append(
            put_command(self.game.form, self.game.objects[thing], self.game.receptacles[receptacle])
        )


def put_command(form: str, thing: str, receptacle: str) -> str:
    """Returns the command that puts a thing down in the words of a game's form, "put" or "move"."""
    return f"put {thing} in/on {receptacle}" if form == "put" else f"move {thing} to {receptacle}"


def _plans(game: Game) -> Iterator[_Plan]:
    """All sensible plans: every choice of object, tool and target, in the order the task asks for."""
    held, task = game.holds, game.task
    sources = [
        (o, r)
        for r, inside in enumerate(game.inside)
        for o in inside
        if o in game.goal_objects and o in game.facts["pickupable"]
    ]
    if held >= 0:
        raise ValueError("walkthroughs start with empty hands")
    if task.kind == "look_at_obj_in_light":
        lamps = [
            (o, r)
            for r, inside in enumerate(game.inside)
            for o in inside
            if game.object_types[o] == task.toggle and o in game.facts["toggleable"]
        ]
        for thing, source in sources:
            for lamp, stand in lamps:
                plan = _Plan(game)
                plan.take(thing, source)
                plan.go(stand, open=False)
                plan.commands.append(f"use {game.objects[lamp]}")
                yield plan
        return
    targets = [r for r in game.goal_receptacles if task.object in game.accepts[r]]
    if task.kind == "pick_two_obj_and_place":
        yield from _two(game, sources, targets)
        return
    tools: tuple[int, ...] = (-1,)
    verb = TREATMENTS.get(task.kind, "")
    if verb:
        kinds = {"clean": game.sinks, "heat": {"microwave"}, "cool": {"fridge"}}[verb]
        tools = tuple(r for r, kind in enumerate(game.receptacle_types) if kind in kinds)
    for thing, source in sources:
        for tool in tools:
            for target in targets:
                plan = _Plan(game)
                plan.take(thing, source)
                if verb:
                    plan.go(tool, open=False)
                    plan.commands.append(f"{verb} {game.objects[thing]} with {game.receptacles[tool]}")
                plan.put(thing, target)
                yield plan


def _two(game: Game, sources: list[tuple[int, int]], targets: list[int]) -> Iterator[_Plan]:
    for target in targets:
        there = [o for o in game.inside[target] if o in game.goal_objects]
        rest = [(o, r) for o, r in sources if o not in there]
        for chosen in permutations(rest, max(2 - len(there), 0)):
            if len({o for o, _ in chosen}) < len(chosen):
                continue
            plan = _Plan(game)
            for thing, source in chosen:
                plan.take(thing, source)
                plan.put(thing, target)
            yield plan
