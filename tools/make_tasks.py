"""Makes ALFWorld games from the floor plans in the alfworld package, in the layout of the published data.

    python -m tools.make_tasks --out=DIR --train=5000 --valid_seen=200 --valid_unseen=200 \\
        --task_types=pick_and_place_simple,look_at_obj_in_light --room_types=bedroom,bathroom --max_receptacles=10

The package is fetched through pip on first use, unless --source names its wheel or directory.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import Progress

from envs.tasks.alfworld.games import SPLITS, UNSEEN_SCENES, make_games
from envs.tasks.alfworld.pddl import TASK_TYPES
from envs.tasks.alfworld.problem import FORMS
from envs.tasks.alfworld.source import ROOMS
from rl import downloads

VERSION = "0.4.2"


def _names(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in _names(text)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="data root; json_2.1.1 is made in it")
    parser.add_argument("--source", default="", help="alfworld wheel or package directory")
    for split in SPLITS:
        parser.add_argument(f"--{split}", type=int, default=0, help="number of games")
    parser.add_argument("--task_types", type=_names, default=[], help=f"some of {', '.join(TASK_TYPES)}")
    parser.add_argument("--room_types", type=_names, default=[], help=f"some of {', '.join(ROOMS)}")
    parser.add_argument("--scenes", type=_numbers, default=[], help="rooms of train and valid_seen by number")
    parser.add_argument("--unseen_scenes", type=_numbers, default=list(UNSEEN_SCENES))
    parser.add_argument("--max_receptacles", type=int, default=0, help="0: no limit on training rooms")
    parser.add_argument("--clutter", type=float, default=1.0, help="chance that a thing not needed is there")
    parser.add_argument("--form", default="move", choices=FORMS)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main(arguments: list[str] | None = None) -> int:
    flags = vars(_parser().parse_args(arguments))
    out, named = Path(flags.pop("out")), flags.pop("source")
    source = named or downloads.package_wheel("alfworld", VERSION)
    total, start = sum(flags[split] for split in SPLITS), time.monotonic()
    if not total:
        print(f"nothing to make: set {', '.join(f'--{split}' for split in SPLITS)}", file=sys.stderr)
        return 2
    try:
        with _bar(total) as advance:
            made = make_games(source, out, progress=lambda *_: advance(), **flags)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    seconds = time.monotonic() - start
    counts = ", ".join(f"{split} {len(paths)}" for split, paths in made.items())
    print(f"{total} games ({counts}) in {out / 'json_2.1.1'}: {seconds:.1f} s, {total / seconds:.0f} games/s")
    return 0


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    """Shows progress; gives the function to call after each game."""
    with Progress() as progress:
        task = progress.add_task("making games", total=total)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    sys.exit(main())
