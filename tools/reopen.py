"""Environments from a config, and a finished run from its directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs import arguments
from envs.pool import EnvPool
from envs.tasks.alfworld.games import make_games
from rl import cache, downloads
from rl.builder import build
from rl.checkpoint import Checkpoints
from rl.progress import Progress


@contextlib.contextmanager
def reopen(workdir: Path) -> Iterator[tuple[Any, Any]]:
    """Yields (config, parts) at the last whole iteration of a run directory.

    Raises:
      ValueError: if the directory holds no run, or no checkpoint that is intact.
    """
    path = workdir / "config.json"
    if not path.is_file():
        raise ValueError(f"{workdir} holds no run: config.json is missing")
    if Checkpoints(workdir / "checkpoints").latest_step() is None:
        raise ValueError(f"{workdir} has no checkpoint yet")
    config: Any = arguments.from_json(path.read_text())
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(config.train.iterations))
        pool = stack.enter_context(open_pool(config, progress))
        parts = build(config, workdir, pool=pool, progress=progress)
        stack.callback(parts.checkpoints.close)
        stack.callback(parts.writer.close)
        yield config, parts


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
