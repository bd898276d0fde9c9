"""Environments from a config, and a finished run from its directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from configs import arguments, common
from envs.pool import EnvPool
from envs.tasks.alfworld.games import make_games
from rl import cache, downloads
from rl.builder import build
from rl.checkpoint import Checkpoints
from rl.metrics import MetricsWriter
from rl.progress import Progress


@contextlib.contextmanager
def reopen(workdir: Path) -> Iterator[tuple[Any, Any]]:
    """Yields (config, parts) at the last whole iteration of a run directory, to be looked at: nothing in it changes.

    Raises:
      ValueError: if the directory holds no run, or no checkpoint that is intact.
    """
    with contextlib.ExitStack() as stack:
        config = load_config(workdir)
        with Checkpoints(workdir / "checkpoints") as checkpoints:
            if checkpoints.latest_step() is None:
                raise ValueError(f"{workdir} has no checkpoint yet")
        progress = stack.enter_context(Progress(config.train.iterations))
        pool = stack.enter_context(open_pool(config, progress))
        silent = arguments.overlay(config.copy_and_resolve_references(), {"log.wandb_project": ""})
        parts = build(silent, workdir, pool=pool, progress=progress)
        stack.callback(parts.checkpoints.close)
        # The writer that was built touches nothing before it writes; this one never writes.
        yield config, dataclasses.replace(parts, writer=MetricsWriter(workdir, enabled=False))


def load_config(workdir: Path) -> Any:
    """The config of a run directory as this program reads it; prints which keys are newer than the run or gone.

    Newer keys have their defaults, keys that are gone are left out.

    Raises:
      ValueError: if the directory holds no run, or a key has a value of another type now.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise ValueError(f"{workdir} holds no run: config.json is missing")
    held = arguments.leaves(arguments.from_json(path.read_text()))
    config = common.base()
    known = arguments.leaves(config)
    if newer := [key for key in known if key not in held]:
        print(f"{path} lacks newer keys, which have their defaults: {', '.join(_folded(newer, held))}")
    if gone := [key for key in held if key not in known]:
        print(f"{path} has keys that are gone and left out: {', '.join(gone)}")
    arguments.overlay(config, {key: value for key, value in held.items() if key in known})
    return arguments.lock(config)


def _folded(keys: list[str], held: Mapping[str, Any]) -> list[str]:
    """Keys by name; those of a section of which nothing is held as one `section.*`."""
    sections = {key.rsplit(".", depth)[0] for key in held for depth in range(1, key.count(".") + 1)}
    out = []
    for key in keys:
        parts = key.split(".")
        above = [".".join(parts[:depth]) for depth in range(1, len(parts))]
        out.append(next((f"{name}.*" for name in above if name not in sections), key))
    return list(dict.fromkeys(out))


def open_pool(config: Any, progress: Any) -> Any:
    """The environments of a config, as a context manager; their games are made on first use."""
    env = config.env
    settings = env.settings.to_dict() | {"context": config.rollout.context}
    if env.name == "alfworld":
        settings["data_dir"] = str(games(env, progress))
    return EnvPool(
        name=env.name,
        config=settings,
        workers=env.workers,
        slots=config.rollout.slots,
        deadline_s=env.deadline_s,
        restarts=env.restarts,
        interpreter=env.interpreter or None,
        address=list(env.addresses),
        token=os.environ.get("AGENTROPY_ENV_TOKEN"),
    )


def games(env: Any, progress: Any) -> Path:
    """The directory of ALFWorld games: the one that is named, else made on first use into the cache."""
    named = env.data_dir or os.environ.get("ALFWORLD_DATA")
    if named:
        return Path(named)
    home = cache.directory("alfworld", env.games)
    with downloads.locked(home):  # runs that start together wait for the one that makes the games
        if (home / "json_2.1.1").is_dir():
            return home
        games = env.games.to_dict()
        total = sum(games[split] for split in ("train", "valid_seen", "valid_unseen"))
        source = downloads.package_wheel("alfworld", "0.4.2")
        with progress.bar("making games", total) as advance:
            made = make_games(source, home, progress=lambda *_: advance(), **games)
    progress.message(
        f"games in {home}: " + ", ".join(f"{split} {len(paths)}" for split, paths in made.items())
    )
    return home
