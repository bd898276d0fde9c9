"""Walks the fast ALFWorld engine and the real stack in lock-step and exits with 1 at the first difference.

    python -m tools.check_alfworld --data=DIR --games=200 --steps=10000 [--data=DIR2] [--seed=0] [--workers=2]
    python -m tools.check_alfworld --data=DIR --engine_speed

DIR is a data root in the published layout (it may hold several splits). Each game is played three times: its
walkthrough, an exploring expert with wrong commands in between, and random commands; invalid ones are mixed in. After
every command the observation, the admissible commands, the reward and `won` must be equal. Half of the games are played
in the wording of the other text form ("put X in/on Y" or "move X to Y"). Needs the extra `[alfworld]`; runs from the
project root with any interpreter that has it (standard library and numpy besides). Exits with 2 where it cannot run.
"""

import argparse
import importlib.util
import json
import multiprocessing
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from envs.tasks.alfworld.engine import EngineState, FastEngine, Game
from envs.tasks.alfworld.expert import Explorer, walkthrough
from envs.tasks.alfworld.problem import wording
from envs.tasks.alfworld.source import read_source, source_path
from envs.tasks.alfworld.textworld import TextWorldEngine, missing

_NOISE = 0.15  # chance that the expert's command is replaced
_AFTER_WIN = 2  # random commands after a win: both engines play on
_TASKS_PER_PROCESS = 20  # Fast Downward never gives its memory back


Player = Generator[str, EngineState, None]  # takes a state, gives the next command


@dataclass(frozen=True)
class Job:
    path: str
    source: str  # package directory, for the wording of the other form; "" keeps the game's own
    steps: int
    seed: int


@dataclass(frozen=True)
class Report:
    path: str
    task: str
    form: str
    steps: int
    wins: int
    invalid: int
    seconds: float  # the real stack's, for steps alone
    difference: str  # "" when there is none


def find_games(roots: list[str], count: int, seed: int) -> list[str]:
    """Returns `count` game files (all, for 0) from data roots, all task types in equal shares as far as they go."""
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for root in roots:
        for path in sorted(Path(root).rglob("game.tw-pddl")):
            kinds[root, path.parent.parent.name.split("-")[0]].append(str(path))
    rng = random.Random(seed)
    for paths in kinds.values():
        rng.shuffle(paths)
    total = sum(map(len, kinds.values()))
    chosen: list[str] = []
    while len(chosen) < (min(count, total) if count else total):
        for key in sorted(kinds):
            if kinds[key]:
                chosen.append(kinds[key].pop())
    return chosen[:count] if count else chosen


def compare(job: Job) -> Report:
    """Plays one game on both engines; returns what was done and the first difference."""
    data = json.loads(Path(job.path).read_text(encoding="utf-8"))
    if job.source:
        data = _reworded(data, job.source)
    game = Game.parse(data, path=job.path)
    fast, real = FastEngine(game), TextWorldEngine(data)
    rng = random.Random(job.seed)
    seconds: list[float] = []
    counts: Counter[str] = Counter()
    difference = ""
    while counts["steps"] < job.steps and not difference:
        for play in (_walkthrough, _explore, _random):
            left = job.steps - counts["steps"]
            limit = left if play is _random else max(1, left // 2)
            difference = _play(game, play(game, rng), fast, real, rng, limit, seconds, counts)
            if difference or counts["steps"] >= job.steps:
                break
    return Report(
        job.path,
        game.task.kind,
        game.form,
        counts["steps"],
        counts["wins"],
        counts["invalid"],
        sum(seconds),
        difference,
    )


def _play(
    game: Game,
    player: Player,
    fast: FastEngine,
    real: TextWorldEngine,
    rng: random.Random,
    limit: int,
    seconds: list[float],
    counts: Counter[str],
) -> str:
    """One episode: at most `limit` commands of a player, and a few after a win. Returns the first difference."""
    state, true = fast.reset(), real.reset()
    history = ["reset"]
    difference = _difference(state, true, 0.0, real.reward)
    next(player)
    extra = 0
    for _ in range(limit):
        if difference or extra > _AFTER_WIN:
            break
        command = player.send(state)
        counts["steps"] += 1
        counts["invalid"] += command.strip() not in state.admissible
        before = state.won
        state = fast.step(command)
        start = time.perf_counter()
        true = real.step(command)
        seconds.append(time.perf_counter() - start)
        history.append(command)
        counts["wins"] += state.won and not before
        extra += state.won or extra > 0
        difference = _difference(state, true, float(state.won), real.reward)
    if not difference:
        return ""
    return "\n".join(
        [f"{game.path} ({game.form}), after:", *(f"    {command!r}" for command in history), difference]
    )


def _difference(ours: EngineState, theirs: EngineState, reward: float, true: float) -> str:
    rows = [
        ("observation", ours.observation, theirs.observation),
        ("won", ours.won, theirs.won),
        ("reward", reward, true),
        (
            "only here admissible",
            sorted(set(ours.admissible) - set(theirs.admissible)),
            sorted(set(theirs.admissible) - set(ours.admissible)),
        ),
        ("admissible", ours.admissible, theirs.admissible),
    ]
    for name, fast, real in rows:
        if fast != real:
            return f"  {name} differs\n    fast engine: {fast!r}\n    real stack:  {real!r}"
    return ""


# --- players


def _walkthrough(game: Game, rng: random.Random) -> Player:
    state = yield ""
    for command in walkthrough(game):
        state = yield command
    while True:
        state = yield rng.choice(state.admissible)


def _explore(game: Game, rng: random.Random) -> Player:
    expert = Explorer(game, order=rng.choice(("listed", "random")), seed=rng.randrange(1 << 30))
    state = yield ""
    while True:
        command = expert.act(state.observation, state.admissible)
        if rng.random() < _NOISE:
            command = _any(game, state, rng)
        state = yield command


def _random(game: Game, rng: random.Random) -> Player:
    state = yield ""
    while True:
        state = yield _any(game, state, rng)


def _any(game: Game, state: EngineState, rng: random.Random) -> str:
    """A random command: walking less often than its share of the list, one in eight invalid."""
    if rng.random() < 0.125:
        return _invalid(game, state, rng)
    doing = [command for command in state.admissible if not command.startswith("go to ")]
    return rng.choice(doing if rng.random() < 0.6 else state.admissible)


def _invalid(game: Game, state: EngineState, rng: random.Random) -> str:
    """A command that is mostly not admissible: nonsense, near misses, and sensible ones at the wrong place."""
    thing, receptacle = rng.choice(game.objects), rng.choice(game.receptacles)
    command = rng.choice(state.admissible)
    return rng.choice(
        (
            "",
            "dance",
            command.upper(),
            command + " now",
            f"  {command}  ",
            command.replace(" ", "  "),
            "help",
            f"examine {thing}",
            f"examine {receptacle}",
            f"go to {receptacle}",
            f"open {receptacle}",
            f"close {receptacle}",
            f"take {thing} from {receptacle}",
            f"put {thing} in/on {receptacle}",
            f"move {thing} to {receptacle}",
            f"use {thing}",
            f"heat {thing} with {receptacle}",
            f"clean {thing} with {receptacle}",
            f"cool {thing} with {receptacle}",
            f"slice {thing} with {rng.choice(game.objects)}",
        )
    )


def _reworded(data: dict[str, str], source: str) -> dict[str, str]:
    """A game in the words of the other text form."""
    game = Game.parse(data)
    texts = wording(read_source(source), "put" if game.form == "move" else "move")
    goal = game.goal_sentence.removeprefix("Your task is to: ")
    grammar = texts["grammar"].replace("UNKNOWN GOAL.", json.dumps(goal)[1:-1])
    return {**data, "grammar": grammar, "pddl_domain": texts["domain"]}


def engine_speed(paths: list[str], *, seconds: float, seed: int) -> str:
    """Returns the fast engine's speed in this process: random admissible commands, the lists of commands included.

    Steps per second of wall time, and of CPU time, which other jobs on the machine do not lower.
    """
    rng = random.Random(seed)
    games = [Game.load(path) for path in paths]
    steps, start, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        engine = FastEngine(games[rng.randrange(len(games))])
        state = engine.reset()
        for _ in range(50):
            state = engine.step(state.admissible[int(rng.random() * len(state.admissible))])
        steps += 50
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    return f"{steps / wall:,.0f} steps/s ({steps / cpu:,.0f} a CPU second)"


def _check(paths: list[str], *, steps: int, seed: int, workers: int) -> int:
    spec = importlib.util.find_spec("alfworld")
    source = (
        source_path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else ""
    )
    share = -(-steps // len(paths))
    other = random.Random(seed).sample(
        range(len(paths)), len(paths) // 2
    )  # games to be told in the other form
    jobs = [Job(path, source if i in set(other) else "", share, seed + i) for i, path in enumerate(paths)]
    done: Counter[str] = Counter()
    total: Counter[str] = Counter()
    seconds = 0.0
    begun = said = time.monotonic()
    # Processes, not threads: the real stack keeps its state in a C library.
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=_TASKS_PER_PROCESS) as pool:
        for report in pool.imap_unordered(compare, jobs):
            done[f"{report.task}, {report.form}"] += 1
            total.update(games=1, steps=report.steps, wins=report.wins, invalid=report.invalid)
            seconds += report.seconds
            if report.difference:
                print(f"DIFFERENCE in game {total['games']} of {len(paths)}\n{report.difference}", flush=True)
                return 1
            if time.monotonic() - said > 10:
                said = time.monotonic()
                left = (said - begun) / total["games"] * (len(paths) - total["games"])
                print(
                    f"{total['games']}/{len(paths)} games, {total['steps']} steps, no difference, "
                    f"about {left / 60:.1f} min left",
                    file=sys.stderr,
                    flush=True,
                )
    print(
        f"0 differences in {total['games']} games and {total['steps']} steps "
        f"({total['wins']} wins, {total['invalid']} invalid commands)"
    )
    for name, count in sorted(done.items()):
        print(f"  {count:4d} games  {name}")
    speed = engine_speed(paths[:60], seconds=2.0, seed=seed)
    print(
        f"one process: fast {speed}, real {total['steps'] / seconds:,.1f} steps/s; "
        f"{time.monotonic() - begun:.0f} s in all"
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", action="append", required=True, metavar="DIR", help="data root; may be repeated"
    )
    parser.add_argument("--games", type=int, default=0, help="how many games; 0 takes all")
    parser.add_argument("--steps", type=int, default=10_000, help="how many steps over all games")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--engine_speed", action="store_true", help="only measure the fast engine's steps/s")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long --engine_speed measures")
    flags = parser.parse_args(arguments)
    paths = find_games(flags.data, flags.games, flags.seed)
    if not paths:
        parser.error(f"no game.tw-pddl below {', '.join(flags.data)}")
    if flags.engine_speed:
        paths = paths[:60]
        speed = engine_speed(paths, seconds=flags.seconds, seed=flags.seed)
        print(f"fast engine: {speed} over {len(paths)} games, one process")
        return 0
    reason = missing()
    if reason:
        parser.error(reason)
    return _check(paths, steps=flags.steps, seed=flags.seed, workers=flags.workers)


if __name__ == "__main__":
    sys.exit(main())
