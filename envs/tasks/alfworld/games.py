"""Making ALFWorld games: rooms of the floor plans, filled at random, in the layout of the published data.

`<out>/json_2.1.1/<split>/<task>-<object>-<movable>-<receptacle>-<scene>/trial_*/` holds `traj_data.json`,
`initial_state.pddl` and `game.tw-pddl`, which both engines and the real stack's loader read.
"""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.tasks.alfworld.engine import FastEngine
from envs.tasks.alfworld.game import Game
from envs.tasks.alfworld.pddl import TASK_TYPES
from envs.tasks.alfworld.plans import walkthrough
from envs.tasks.alfworld.problem import Room, problem_text, wording
from envs.tasks.alfworld.source import ROOMS, Fixture, Scene, Source, entity, read_source, source_path

UNSEEN_SCENES = (10, 219, 308, 424)  # the published held-out rooms
SPLITS = ("train", "valid_seen", "valid_unseen")
_TOOLS = {
    "pick_clean_then_place_in_recep": ("Cleanable", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("Heatable", "Microwave"),
    "pick_cool_then_place_in_recep": ("Coolable", "Fridge"),
}
_LAMP_STANDS = ("SideTable", "Desk", "Dresser", "Shelf", "CoffeeTable", "DiningTable")
_COPIES = (0.6, 0.3, 0.1)  # chance of one, two, three things of a type (ALFRED: at most three)
_ATTEMPTS = 200  # draws before a split counts as exhausted


@dataclass(frozen=True)
class Goal:
    """What a game asks for, in ALFRED's type names; "" where the task has no such part."""

    kind: str
    object: str
    receptacle: str
    toggle: str
    scene: Scene

    @property
    def folder(self) -> str:
        return f"{self.kind}-{self.object}-None-{self.receptacle or self.toggle}-{self.scene.number}"


def make_games(
    source: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    train: int,
    valid_seen: int,
    valid_unseen: int,
    task_types: Sequence[str] = (),
    room_types: Sequence[str] = (),
    scenes: Sequence[int] = (),
    unseen_scenes: Sequence[int] = UNSEEN_SCENES,
    max_receptacles: int = 0,
    clutter: float = 1.0,
    form: str = "move",
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, list[str]]:
    """Makes games and returns split -> their trial directories (strings below `out_dir`), in the order made.

    Args:
        source: the alfworld wheel or package directory, which holds floor plans, domain and grammar.
        train, valid_seen, valid_unseen: games of each split. Train and valid_seen share rooms but no game; valid_unseen
            is set in `unseen_scenes` only, which the other two never use.
        task_types: some of the six published names, drawn in equal shares; empty for all. Types that no room of a split
            can host are left out of that split.
        room_types: some of kitchen, livingroom, bedroom, bathroom; empty for all.
        scenes: rooms of train and valid_seen by number; empty for all that are not in `unseen_scenes`.
        max_receptacles: leaves out training rooms with more receptacles; 0 keeps all. Unseen rooms are always kept.
        clutter: chance in [0, 1] that a type of thing that the room may hold, and the goal does not need, is there.
        form: "move" (the wording of alfworld 0.4) or "put" (the wording of the released games).
        progress: called with (split, games made, games wanted).

    The same arguments give the same games; raising `train` only appends. No two games are alike, over all splits, and
    each was won by its walkthrough. The games appear all at once, when the last is made. Raises ValueError when a split
    has fewer distinct games than wanted, or `out_dir` holds games already.
    """
    names = tuple(task_types) or TASK_TYPES
    for name in names:
        if name not in TASK_TYPES:
            raise ValueError(f"unknown task type {name!r}; known: {TASK_TYPES}")
    for name in room_types:
        if name not in ROOMS:
            raise ValueError(f"unknown room type {name!r}; known: {tuple(ROOMS)}")
    if not 0 <= clutter <= 1:
        raise ValueError(f"{clutter=} must be in [0, 1]")
    data = read_source(source_path(source))
    rooms = tuple(room_types) or tuple(ROOMS)
    known = [scene for scene in data.scenes.values() if scene.room in rooms]
    unseen = [scene for scene in known if scene.number in set(unseen_scenes)]
    seen = [
        scene
        for scene in known
        if scene.number not in set(unseen_scenes)
        and (not scenes or scene.number in set(scenes))
        and (not max_receptacles or len(scene.fixtures) <= max_receptacles)
    ]
    logic = wording(data, form)
    final = Path(out_dir) / "json_2.1.1"
    made: dict[str, list[str]] = {}
    taken: set[tuple] = set()
    # Validation first: its games do not change with the number of training games.
    plan = (("valid_unseen", valid_unseen, unseen), ("valid_seen", valid_seen, seen), ("train", train, seen))
    with _all_at_once(final) as folder:
        for split, count, where in plan:
            goals = _goals(data, where, names) if count else {}
            if count and not goals:
                raise ValueError(
                    f"no room can host {split=}: {room_types=}, {scenes=}, {max_receptacles=}, {task_types=}"
                )
            kinds = [name for name in names if name in goals]
            made[split] = []
            for index in range(count):
                draws = (random.Random(f"{seed} {split} {index} {attempt}") for attempt in range(_ATTEMPTS))
                found = _draw(data, goals[kinds[index % len(kinds)]], taken, draws, clutter=clutter)
                if found is None:
                    raise ValueError(
                        f"{split} has no more than {index} distinct games; "
                        "ask for fewer, or for more rooms or task types"
                    )
                goal, room, rng = found
                trial = Path(split) / goal.folder / f"trial_M{seed}_{index:06d}"
                _write(data, folder / trial, goal, room, rng, logic=logic)
                made[split].append(str(final / trial))
                if progress is not None:
                    progress(split, index + 1, count)
    return {split: made[split] for split in SPLITS}


@contextlib.contextmanager
def _all_at_once(final: Path) -> Iterator[Path]:
    """Gives a directory to fill, which becomes `final` when all went well and goes away when not."""
    if final.exists():
        raise ValueError(f"{final} holds games already; remove it or choose another out_dir")
    partial = final.with_name(f"{final.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _goals(source: Source, scenes: Sequence[Scene], names: Sequence[str]) -> dict[str, dict[int, list[Goal]]]:
    """Task type -> scene -> what can be asked for there. Tasks that no scene can host are left out."""
    found: dict[str, dict[int, list[Goal]]] = {}
    for scene in scenes:
        kinds = sorted({fixture.kind for fixture in scene.fixtures})
        homes = {
            thing: {kind for kind in kinds if thing in source.contains[kind]} for thing in scene.movables
        }
        for name in names:
            ability, tool = _TOOLS.get(name, ("", ""))
            if name == "look_at_obj_in_light":
                asked = [
                    Goal(name, thing, "", "DeskLamp", scene)
                    for thing in scene.movables
                    if homes[thing] and scene.lamps and set(kinds) & set(_LAMP_STANDS)
                ]
            else:
                # A thing must have a place to be found that is not where it is to be brought.
                asked = [
                    Goal(name, thing, target, "", scene)
                    for thing in scene.movables
                    for target in homes[thing]
                    if homes[thing] - {target}
                    and target != tool
                    and (not tool or (tool in kinds and thing in source.actions[ability]))
                ]
            if asked:
                asked.sort(key=lambda goal: (goal.object, goal.receptacle))
                found.setdefault(name, {})[scene.number] = asked
    return found


def _draw(
    source: Source,
    goals: dict[int, list[Goal]],
    taken: set[tuple],
    draws: Iterator[random.Random],
    *,
    clutter: float,
) -> tuple[Goal, Room, random.Random] | None:
    """The first draw that is no game of `taken`, which it joins; None when all are."""
    for rng in draws:
        goal = rng.choice(goals[rng.choice(sorted(goals))])
        room = _furnish(source, goal, rng, clutter=clutter)
        key = (goal.folder, room.key())
        if key not in taken:
            taken.add(key)
            return goal, room, rng
    return None


def _furnish(source: Source, goal: Goal, rng: random.Random, *, clutter: float) -> Room:
    """A room filled at random, in which the goal does not hold yet."""
    scene = goal.scene
    things: list[tuple[str, str, Fixture]] = []
    used: set[str] = set()

    def place(kind: str, fixtures: list[Fixture]) -> None:
        fixture = rng.choice(fixtures)
        while True:
            x, z = fixture.x + rng.uniform(-0.4, 0.4), fixture.z + rng.uniform(-0.4, 0.4)
            id = entity(kind, x, rng.uniform(0.1, 1.6), z)
            if id not in used:
                break
        used.add(id)
        things.append((id, kind, fixture))

    for kind in scene.movables:
        homes = [fixture for fixture in scene.fixtures if kind in source.contains[fixture.kind]]
        wanted = kind == goal.object
        if not homes or (not wanted and rng.random() >= clutter):
            continue
        copies = rng.choices((1, 2, 3), _COPIES)[0]
        if wanted:
            homes = [fixture for fixture in homes if fixture.kind != goal.receptacle]
            copies = max(copies, 2 if goal.kind == "pick_two_obj_and_place" else 1)
        for _ in range(copies):
            place(kind, homes)
    stands = [fixture for fixture in scene.fixtures if fixture.kind in _LAMP_STANDS]
    if scene.lamps and stands:
        place("DeskLamp", stands)
    return Room(scene=scene, start=rng.choice(scene.starts), things=tuple(things))


def _write(
    source: Source, where: Path, goal: Goal, room: Room, rng: random.Random, *, logic: dict[str, str]
) -> None:
    expression, sentences = source.goals[goal.kind]
    params = {"obj": goal.object, "recep": goal.receptacle, "toggle": goal.toggle, "mrecep": ""}
    asked = rng.choice(sentences).format(**{key: value.lower() for key, value in params.items()})
    problem = problem_text(source, room, expression.format(**params), name=where.name)
    game = {
        "pddl_domain": logic["domain"],
        "grammar": logic["grammar"].replace("UNKNOWN GOAL", asked),
        "pddl_problem": problem,
        "solvable": True,
    }
    parsed = Game.parse(game, path=str(where))
    walk = walkthrough(parsed)
    engine = FastEngine(parsed)
    if engine.reset().won or not [engine.step(command) for command in walk][-1].won:
        raise AssertionError(f"{where}: the walkthrough {walk} does not win")
    trajectory = {
        "task_id": where.name,
        "task_type": goal.kind,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": goal.object,
            "parent_target": goal.receptacle,
            "toggle_target": goal.toggle,
        },
        "scene": {"floor_plan": f"FloorPlan{goal.scene.number}", "scene_num": goal.scene.number},
        "turk_annotations": {"anns": [{"task_desc": f"{asked}.", "high_descs": []}]},
        "plan": {"high_pddl": []},
    }
    where.mkdir(parents=True, exist_ok=True)
    (where / "initial_state.pddl").write_text(problem, encoding="utf-8")
    (where / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    (where / "game.tw-pddl").write_text(json.dumps({**game, "walkthrough": walk}), encoding="utf-8")
