"""Trains or evaluates an agent: `python main.py --config=configs/alfworld_aem.py --workdir=runs/alfworld_aem`.

The only place where things are built: mesh, games, environments, policy, samplers, learner, trainer.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import config_flags

from configs import arguments

CONFIG = config_flags.DEFINE_config_file("config", "configs/alfworld_aem.py", "what to run", lock_config=True)
WORKDIR = flags.DEFINE_string("workdir", "", "run directory; default runs/<name of the config>")
MODE = flags.DEFINE_enum(
    "mode", "train", ["train", "eval"], "train, or evaluate the last checkpoint over full splits"
)

# A run directory may be continued with other values of these; of any other key it holds another run.
RESUMABLE = (
    "train.iterations",
    "train.checkpoint_every",
    "train.keep",
    "eval.*",
    "log.*",
    "env.workers",
    "env.deadline_s",
)


def main(_: Any) -> None:
    logging.set_verbosity(logging.WARNING)  # jax reports the accelerators that it does not find
    config = CONFIG.value
    workdir = Path(WORKDIR.value or Path("runs") / _run_name())
    try:
        run(config, workdir, MODE.value)
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("AGENTROPY_TRACEBACK"):
            raise
        sys.exit(f"error: {error}\n(AGENTROPY_TRACEBACK=1 shows where)")


def run(config: Any, workdir: Path, mode: str) -> None:
    """Builds everything, then trains or evaluates. A stopped run goes on where it was when started again."""
    _claim(workdir, config)
    _compilation_cache()
    # Imported here, so that --help and errors in flags answer at once.
    from rl import summary, trainer
    from rl.builder import build
    from rl.progress import Progress
    from tools.plot_runs import plot_run
    from tools.reopen import open_pool

    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress(config.train.iterations))
        pool = stack.enter_context(open_pool(config, progress))
        parts = build(config, workdir, pool=pool, progress=progress)
        stack.callback(parts.checkpoints.close)
        stack.callback(parts.writer.close)
        if mode == "eval":
            summary.evaluate(config, parts)
            return
        try:
            trainer.Trainer(config, parts).run()
        except trainer.Interrupted as stop:
            progress.message(f"{stop}. The same command goes on from {workdir}")
            return
        summary.finish(parts, draw=plot_run)


def _claim(workdir: Path, config: Any) -> None:
    """Writes the config to a new run directory; refuses one that holds another run."""
    path = workdir / "config.json"
    if path.exists():
        changed = arguments.diff(arguments.from_json(path.read_text()), config, ignore=RESUMABLE)
        if changed:
            raise ValueError(
                f"{workdir} holds a run with another config: {', '.join(changed[:8])} differ. "
                "Choose another --workdir, or remove it to start anew."
            )
    workdir.mkdir(parents=True, exist_ok=True)
    path.write_text(arguments.to_json(config))


def _run_name() -> str:
    """alfworld_aem.py:quick,seed=1 -> alfworld_aem-quick-seed=1."""
    text = next(
        (a.partition("=")[2] for a in sys.argv if re.match(r"--?config=", a)), "configs/alfworld_aem.py"
    )
    path, _, argument = text.partition(":")
    return re.sub(r"[^\w.=-]+", "-", "-".join(filter(None, [Path(path).stem, argument])))


def _compilation_cache() -> None:
    import jax

    from rl.downloads import cache_root

    jax.config.update("jax_compilation_cache_dir", str(cache_root() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


if __name__ == "__main__":
    app.run(main, flags_parser=arguments.parse_flags)
