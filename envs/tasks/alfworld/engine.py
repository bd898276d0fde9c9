"""ALFWorld's text engine in plain Python: same observations, admissible commands and wins as the real stack.

It plays the published domain directly instead of through Fast Downward, thousands of times faster; `textworld.py` runs
the real one with the same interface, and `tools/check_alfworld.py` walks both in lock-step.
"""

from typing import NamedTuple

from envs.tasks.alfworld.game import NOTHING, Game

__all__ = ["EngineState", "FastEngine", "Game"]

_GO, _OPEN, _CLOSE, _TAKE, _PUT, _CLEAN, _HEAT, _COOL, _USE, _SLICE = range(10)  # change the world
_SEE, _INSPECT, _LOOK, _INVENTORY, _HELP = range(10, 15)  # only look at it
_KNIVES = ("knife", "butterknife")


class EngineState(NamedTuple):
    observation: str
    admissible: list[str]  # sorted; belongs to the engine, not to be changed
    won: bool  # whether the goal holds now


class FastEngine:
    """Plays one game. It has no step limit and plays on after a win: both belong to the environment."""

    def __init__(self, game: Game):
        self.game = game
        self._rules = game.grammar.rules
        # Location -> the commands that depend on nothing else.
        self._static: dict[int, dict[str, tuple[int, int, int]]] = {}
        self.reset()

    def reset(self) -> EngineState:
        """Returns the introduction: the receptacles of the room and the goal."""
        game = self.game
        self._location = game.start
        self._held = game.holds
        self._opened = set(game.opened)
        self._inside = [list(things) for things in game.inside]
        self._places = [set(at) for at in game.object_places]
        # (object, receptacle) for each receptacle that an object was taken out of and is not in now.
        self._moved: set[tuple[int, int]] = set()
        self._toggled, self._sliced, self._clean, self._hot, self._cool = (
            set(game.facts[key]) for key in ("istoggled", "issliced", "isclean", "ishot", "iscool")
        )
        room = [f"a {name}" for name in game.receptacles]
        look = self._rules["look.feedback"][1].format(list_appliances=self._join(room))
        if game.here[self._location]:
            look = self._look()
        return self._state(self._rules["intro"][0].format(look=look, task=game.goal_sentence))

    def step(self, command: str) -> EngineState:
        """Returns the state after a command; one that is not admissible changes nothing ("Nothing happens.")."""
        action = self._commands.get(command.strip())
        if action is None:
            return EngineState(NOTHING, self._admissible, self._won)
        code, thing, receptacle = action
        if code >= _SEE:  # looking changes neither the world nor what can be done
            return EngineState(self._observe(code, thing, receptacle), self._admissible, self._won)
        return self._state(self._act(code, thing, receptacle))

    # --- what commands do

    def _act(self, code: int, thing: int, receptacle: int) -> str:
        game, rules = self.game, self._rules
        if code == _GO:
            self._location = game.place[receptacle]
            return rules["GotoLocation.feedback"][0].format(
                lend=game.locations[self._location],
                r=game.receptacles[receptacle],
                examineReceptacle=self._see(receptacle),
            )
        if code == _OPEN:
            self._opened.add(receptacle)
            return rules["OpenObject.feedback"][0].format(
                r=game.receptacles[receptacle], examineReceptacle=self._see(receptacle)
            )
        if code == _CLOSE:
            self._opened.discard(receptacle)
            return rules["CloseObject.feedback"][0].format(r=game.receptacles[receptacle])
        if code == _USE:
            self._toggled.add(thing)  # the domain never turns a lamp off again
            return rules["toggleObject.feedback"][0].format(o=game.objects[thing])
        if code == _SLICE:  # here `thing` is cut and `receptacle` is the knife
            self._sliced.add(thing)
            return rules["sliceObject.feedback"][0].format(
                co=game.objects[thing], ko=game.objects[receptacle]
            )

        names = {"o": game.objects[thing], "r": game.receptacles[receptacle]}
        if code == _TAKE:
            self._inside[receptacle].remove(thing)
            self._moved.add((thing, receptacle))
            self._places[thing].discard(self._location)
            self._held = thing
            return rules["PickupObject.feedback"][0].format(**names)
        if code == _PUT:
            # It may be in there already: the released games put some objects in two receptacles at once.
            self._inside[receptacle] = sorted({*self._inside[receptacle], thing})
            self._moved.discard((thing, receptacle))
            self._places[thing].add(self._location)
            self._held = -1
            return rules["PutObject.feedback"][0].format(**names)
        if code == _CLEAN:
            self._clean.add(thing)
            return rules["cleanObject.feedback"][0].format(**names)
        if code == _HEAT:
            self._hot.add(thing)
            self._cool.discard(thing)
            return rules["heatObject.feedback"][0].format(**names)
        self._cool.add(thing)
        self._hot.discard(thing)
        return rules["coolObject.feedback"][0].format(**names)

    def _observe(self, code: int, thing: int, receptacle: int) -> str:
        game, rules = self.game, self._rules
        if code == _SEE:
            return self._see(receptacle)
        if code == _INSPECT:
            return self._inspect(thing)
        if code == _LOOK:
            return self._look()
        if code == _INVENTORY:
            if self._held < 0:
                return rules["inventory.feedback"][1]
            return rules["inventory.feedback"][0].format(list=f"a {game.objects[self._held]}")
        return game.grammar.help or ""

    # --- what is seen

    def _see(self, receptacle: int) -> str:
        """What a receptacle shows: its content, or that it is closed."""
        opened, closed, plain = self._rules["examineReceptacle.feedback"]
        name = self.game.receptacles[receptacle]
        if receptacle not in self.game.openable:
            text = plain
        elif receptacle in self._opened:
            text = opened
        else:
            return closed.format(r=name)
        objects = self.game.objects
        return text.format(r=name, list=self._join([f"a {objects[o]}" for o in self._inside[receptacle]]))

    def _inspect(self, thing: int) -> str:
        game, rules = self.game, self._rules["examineObject.feedback"]
        name = game.objects[thing]
        if thing in game.facts["isreceptacleobject"]:
            return rules[0].format(
                o=name, list=self._join([f"a {game.objects[o]}" for o in game.nested[thing]])
            )
        clean, hot, cool, sliced = (
            thing in facts for facts in (self._clean, self._hot, self._cool, self._sliced)
        )
        toggleable = thing in game.facts["toggleable"]
        # The order of the grammar's conditions; "off" is never said, since nothing is ever known to be off.
        conditions = (
            clean and hot and sliced,
            clean and cool and sliced,
            clean and sliced,
            hot and sliced,
            cool and sliced,
            clean and hot,
            clean and cool,
            hot,
            clean,
            cool,
            toggleable and thing in self._toggled,
            False,
            sliced and thing in game.facts["sliceable"],
            True,
        )
        return rules[1 + conditions.index(True)].format(o=name)

    def _look(self) -> str:
        """Away from receptacles nothing is seen: only the introduction lists the room."""
        game, rules = self.game, self._rules
        here = game.here[self._location]
        if not here:
            return rules["look.feedback"][1].format(list_appliances=rules["list_appliances"][1])
        facing = rules["look-variations"][0].format(list=self._join([game.receptacles[r] for r in here]))
        # "On the floor" is what lies at this place and was taken out of a receptacle that stands here.
        floor = [
            f"a {game.objects[o]}"
            for o, r in sorted(self._moved)
            if game.place[r] == self._location and self._location in self._places[o]
        ]
        text = self._join(floor) if floor else rules["list_objects_on_the_floor"][1]
        return rules["look.feedback"][0].format(look_variations=facing, list_objects_on_the_floor=text)

    def _join(self, names: list[str]) -> str:
        rules = self._rules
        if len(names) < 2:
            return names[0] if names else rules["list_empty"][0]
        return rules["list_separator"][0].join(names[:-1]) + rules["list_last_separator"][0] + names[-1]

    # --- what can be done, and whether it is done

    def _state(self, observation: str) -> EngineState:
        self._commands = self._admit()
        self._admissible = sorted(self._commands)
        self._won = self._check()
        return EngineState(observation, self._admissible, self._won)

    def _admit(self) -> dict[str, tuple[int, int, int]]:
        """The admissible commands: command -> (action, object, receptacle)."""
        game, held = self.game, self._held
        commands = dict(self._static.get(self._location) or self._standing(self._location))
        things, names = game.objects, game.receptacles
        if held >= 0:
            # Only the object in hand: a stray comma in the published domain hides what lies around.
            commands[f"examine {things[held]}"] = (_INSPECT, held, -1)
        put = "put {} in/on {}" if game.form == "put" else "move {} to {}"
        pickupable, toggleable = game.facts["pickupable"], game.facts["toggleable"]
        for r in game.here[self._location]:
            name, inside = names[r], self._inside[r]
            reachable = True
            if r in game.openable:
                reachable = r in self._opened
                commands[f"close {name}" if reachable else f"open {name}"] = (
                    _CLOSE if reachable else _OPEN,
                    -1,
                    r,
                )
            for o in inside:
                if o in toggleable:
                    commands[f"use {things[o]}"] = (_USE, o, r)
                if held < 0 and reachable and o in pickupable:
                    commands[f"take {things[o]} from {name}"] = (_TAKE, o, r)
            if held >= 0:
                if reachable and game.object_types[held] in game.accepts[r]:
                    commands[put.format(things[held], name)] = (_PUT, held, r)
                self._admit_treatment(commands, held, r)
        if held >= 0 and game.object_types[held] in _KNIVES:
            for o in game.facts["sliceable"]:
                if self._location in self._places[o]:
                    commands[f"slice {things[o]} with {things[held]}"] = (_SLICE, o, held)
        return commands

    def _admit_treatment(self, commands: dict[str, tuple[int, int, int]], held: int, r: int) -> None:
        """Cleaning, heating and cooling need no open door."""
        game = self.game
        kind, pair = game.receptacle_types[r], f"{game.objects[held]} with {game.receptacles[r]}"
        if kind in game.sinks and held in game.facts["cleanable"]:
            commands[f"clean {pair}"] = (_CLEAN, held, r)
        elif kind == "microwave" and held in game.facts["heatable"]:
            commands[f"heat {pair}"] = (_HEAT, held, r)
        elif kind == "fridge" and held in game.facts["coolable"]:
            commands[f"cool {pair}"] = (_COOL, held, r)

    def _standing(self, location: int) -> dict[str, tuple[int, int, int]]:
        """Commands that depend on the location alone. One cannot go to where one stands."""
        game = self.game
        commands = {"inventory": (_INVENTORY, -1, -1), "look": (_LOOK, -1, -1)}
        if game.helps:
            commands["help"] = (_HELP, -1, -1)
        for r, name in enumerate(game.receptacles):
            if game.place[r] == location:
                commands[f"examine {name}"] = (_SEE, -1, r)
            else:
                commands[f"go to {name}"] = (_GO, -1, r)
        self._static[location] = commands
        return commands

    def _check(self) -> bool:
        game, wanted = self.game, self.game.goal_objects
        kind = game.task.kind
        if kind == "look_at_obj_in_light":
            if self._held not in wanted:
                return False
            return any(
                o in self._toggled
                and game.object_types[o] == game.task.toggle
                and o in game.facts["toggleable"]
                for r in game.here[self._location]
                for o in self._inside[r]
            )
        if kind == "pick_clean_then_place_in_recep":
            wanted = wanted & self._clean
        elif kind == "pick_heat_then_place_in_recep":
            wanted = wanted & self._hot
        elif kind == "pick_cool_then_place_in_recep":
            wanted = wanted & self._cool
        needed = 2 if kind == "pick_two_obj_and_place" else 1
        if len(wanted) < needed:
            return False
        return any(sum(o in wanted for o in self._inside[r]) >= needed for r in game.goal_receptacles)
