"""Runs the cells of a sweep, each as `main.py` in its own directory, and writes their table.

python -m tools.run_sweep --sweep=configs/sweeps/aem_ablations.py --workdir=runs/aem_ablations --dry_run
python -m tools.run_sweep --sweep=configs/sweeps/aem_ablations.py --workdir=runs/aem_ablations --filter='aem-*'
python -m tools.run_sweep --sweep=... --workdir=DIR --parallel=8 --threads_per_cell=4
python -m tools.run_sweep --sweep=... --workdir=DIR --launcher=slurm --slurm gpus_per_node=1 slurm_partition=gpu

The same command goes on where it was: finished cells are left alone, stopped ones resume. After SIGTERM or SIGINT the
running cells save and end, and the status is 128 + the signal's number. A cell that fails does not stop the others;
the status is then 1. `results.csv` has a row a cell and `results.md` a row a method; both hold nothing that depends on
when, or in how many goes, the cells ran.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import fnmatch
import os
import runpy
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import config_flags

from configs import arguments
from configs.sweeps.cell import Cell
from tools import ablation_table, outcomes
from tools.jobs import Job, Stopped
from tools.local_launcher import LocalLauncher
from tools.outcomes import Outcome
from tools.slurm_launcher import SlurmLauncher
from tools.sweep_progress import SweepProgress


def load(sweep: str) -> list[Cell]:
    """Returns `get_sweep(text)` of "path.py" or "path.py:text".

    Raises:
      ValueError: if the file is not there or is no sweep, or two cells have one name.
    """
    path, _, text = sweep.partition(":")
    if not Path(path).is_file():
        raise ValueError(f"--sweep={sweep}: there is no file {path}")
    names = runpy.run_path(path)
    if "get_sweep" not in names:
        raise ValueError(f"{path} has no get_sweep()")
    cells = names["get_sweep"](text)
    called = [cell.name for cell in cells]
    if twice := sorted({name for name in called if called.count(name) > 1}):
        raise ValueError(f"{path} names several cells {', '.join(twice)}")
    return cells


def resolve(cell: Cell) -> Any:
    """Returns the config that `main.py` will have, so that a misspelt key is found before anything runs."""
    try:
        config: Any = config_flags.config_flags.ConfigFileFlagParser("config").parse(cell.config)
        return arguments.overlay(config, cell.overrides)
    except Exception as error:  # ml_collections wraps whatever the config file raises
        raise ValueError(f"{cell.name}: {arguments.explain(error, None)}") from None


def wanted(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Returns the cells whose name matches one of the patterns, all without a pattern.

    Raises:
      ValueError: for a pattern that matches none.
    """
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell.name, pattern) for cell in cells):
            names = ", ".join(cell.name for cell in cells[:4])
            raise ValueError(f"--filter={pattern} matches none of {len(cells)} cells ({names}, ...)")
    return [c for c in cells if not patterns or any(fnmatch.fnmatchcase(c.name, p) for p in patterns)]


def tables(cells: Mapping[str, tuple[Cell, Outcome]]) -> tuple[str, str]:
    """Returns the text of results.csv and of results.md."""
    methods: dict[str, list[Outcome]] = {}
    for cell, outcome in cells.values():
        methods.setdefault(cell.method, []).append(outcome)
    failed = [name for name, (_, outcome) in cells.items() if outcome.state == "failed"]
    runs = {name: (cell.method, cell.seed, outcome) for name, (cell, outcome) in cells.items()}
    return ablation_table.comma_separated(runs), ablation_table.markdown(methods, failed=failed)


def run(options: argparse.Namespace) -> int:
    """Returns the exit status."""
    workdir = Path(options.workdir)
    cells = load(options.sweep)
    configs = {cell.name: resolve(cell) for cell in cells}
    chosen = wanted(cells, options.filter)

    def outcome(named: Cell | Job) -> Outcome:
        return outcomes.read(workdir / named.name, configs[named.name])

    jobs = []
    for cell in chosen:
        directory = workdir / cell.name
        command = [sys.executable, options.program, *cell.flags(), f"--workdir={directory}"]
        jobs.append(Job(cell.name, command, directory, lambda cell=cell: outcome(cell).state == "finished"))
    if options.dry_run:
        for job in jobs:
            print(f"{job.name}: {_state(outcome(job))}\n    {shlex.join(job.command)}")
        return 0
    launcher = _launcher(options)
    iterations = {name: config.train.iterations for name, config in configs.items()}
    with SweepProgress(len(jobs), iterations, outcome) as progress:
        try:
            launcher.run(jobs, progress)
        except Stopped as stop:
            progress.message(f"{stop}. The same command goes on from {workdir}")
            return 128 + stop.number
        found = {cell.name: (cell, outcome(cell)) for cell in cells}
        for name in progress.failed:
            cell, ended = found[name]
            found[name] = cell, dataclasses.replace(ended, state="failed")
        for name, text in zip(("results.csv", "results.md"), tables(found)):
            _replace(workdir / name, text)
        whole = len(jobs) - len(progress.failed)
        progress.message(f"{whole} of {len(jobs)} cells are finished; the table is {workdir / 'results.md'}")
    return 1 if progress.failed else 0


def _launcher(options: argparse.Namespace) -> LocalLauncher | SlurmLauncher:
    if options.launcher == "local":
        return LocalLauncher(options.parallel or 1, options.threads_per_cell, options.grace_s)
    parameters = {}
    for word in options.slurm:
        key, has_value, value = word.partition("=")
        if not has_value:
            raise ValueError(f"--slurm {word} must be KEY=VALUE, as in gpus_per_node=1")
        parameters[key] = _literal(value)
    if options.threads_per_cell:
        parameters.setdefault("cpus_per_task", options.threads_per_cell)
    return SlurmLauncher(Path(options.workdir) / "slurm", options.parallel, parameters)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _state(outcome: Outcome) -> str:
    if outcome.state == "other":
        return f"another config is there, {', '.join(outcome.changed[:4])} differ"
    if outcome.state == "unfinished":
        return f"goes on, iteration {outcome.iteration} was the last"
    return {"new": "starts", "finished": "is finished"}[outcome.state]


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    os.replace(temporary, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sweep", required=True, help="file with get_sweep(), and its arguments: FILE or FILE:quick,seeds=2")
    add("--workdir", required=True, help="a directory for each cell and the table are made here")
    add("--launcher", choices=("local", "slurm"), default="local")
    add("--parallel", type=int, default=0, help="cells at a time; one by default, with slurm all")
    add("--threads_per_cell", type=int, default=0, help="CPUs a cell is pinned to; 0 = no pinning")
    add("--filter", action="append", default=[], help="run only cells of these names, as 'aem-*'; repeatable")
    add("--slurm", nargs="+", default=[], metavar="KEY=VALUE", help="submitit parameters, as gpus_per_node=1")
    add("--grace_s", type=float, default=180.0, help="seconds that a stopped cell has to save")
    add("--program", default="main.py", help="what a cell runs")
    add("--dry_run", action="store_true", help="print the cells, their state and commands")
    try:
        status = run(parser.parse_args(argv))
    except ValueError as error:
        sys.exit(f"error: {error}")
    sys.exit(status)


if __name__ == "__main__":
    main()
