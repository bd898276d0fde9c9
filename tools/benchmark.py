"""How fast, how much memory, how near to what the machine can do, and beside others.

python -m tools.benchmark generate --model=small --batch=32 --json=FILE [--plot=FILE]
python -m tools.benchmark peers --model=smollm2-135m --repeats=3 --install --json=FILE

envs      environment steps/s of ALFWorld: in one process, and through the pool with 1 and more workers
generate  sampled tokens/s: prompts into the cache, then decoding
score     tokens/s of the pass that gives log-probabilities and entropies
update    tokens/s of the GRPO loss, its gradient and AdamW
step      a whole iteration: generate, score, credit, update
peers     generate (at --batch and four times that), update and step, the same work in ours, tunix and TRL

Every contestant is a process of its own that lives through all its turns, pinned to the same --threads CPUs; turns
alternate, forwards and backwards. Reported are medians, the range of the ratios within a round, CPU seconds, the
process's maximum of resident memory, and the share of the roofline: the least time for the counted operations and
bytes (`tools/benchmarks/counts.py`) on this machine, whose ceilings are measured in the same run. Weights are random;
what is run in each peer is in the docstrings of `tools/benchmarks/{ours,tunix_peer,trl_peer}.py`. A peer that dies or
is late is reported, and the others go on. --plot draws how speed and memory grow along the work's axes (batch, context
and vocabulary; trajectories for step): each point is a process too, so give it a small model.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from model.config import ModelConfig
from tools.benchmarks import growth, install, report, shapes, turns
from tools.benchmarks.contestant import Contestant, Entry, Lost, cpus
from tools.benchmarks.report import Case, Record
from tools.benchmarks.shapes import Knobs, Sizes

_OURS = Entry("agentropy", "tools.benchmarks.ours")
_CEILINGS = {"width": 2048, "megabytes": 256}
# tunix's Llama turns positions with this base whatever its config says; it costs the same as any other.
_ROPE_THETA = 1e6
_PEER_WORKS = ("generate", "update", "step")
_WIDTH = 140  # columns of a table that no terminal limits


@dataclasses.dataclass(frozen=True)
class Run:
    """The settings that all works share, and where long work is told of."""

    model: str
    vocabulary: int
    knobs: Knobs
    repeats: int
    warmups: int
    threads: int
    deadline_s: float
    seed: int
    tell: Callable[[str], None]

    def ceilings(self) -> dict[str, float]:
        """Operations and bytes a second of the machine; RuntimeError where they cannot be measured."""
        self.tell("measuring the machine's ceilings")
        with Contestant(Entry("ceilings", "tools.benchmarks.ceilings"), threads=self.threads) as machine:
            try:
                machine.ask({"op": "open", "spec": _CEILINGS}, deadline_s=self.deadline_s)
                return machine.ask({"op": "run"}, deadline_s=self.deadline_s)["result"]
            except Lost as error:
                raise RuntimeError(f"the ceilings cannot be measured: {error}") from error

    def case(
        self,
        work: str,
        config: ModelConfig,
        sizes: Sizes,
        entries: Sequence[Entry] = (_OURS,),
        *,
        ceilings: dict[str, float],
        weights: str = "",
    ) -> Case:
        """One work at one size, measured."""
        spec = shapes.spec(work, config, sizes, knobs=self.knobs, weights=weights, seed=self.seed)
        title = f"{work}: {self.model}, {_sizes(work, sizes)}, vocabulary {config.vocab_size}"
        return Case(title, work, sizes, self.turns(entries, spec), config, ceilings)

    def turns(self, entries: Sequence[Entry], spec: dict[str, Any]) -> list[turns.Measured]:
        return turns.measure(
            entries,
            spec,
            threads=self.threads,
            repeats=self.repeats,
            warmups=self.warmups,
            deadline_s=self.deadline_s,
            tell=self.tell,
        )


def environments(run: Run, sizes: Sizes) -> Iterator[Case]:
    """Yields the steps of `batch` episodes along each route."""
    spec = shapes.spec("envs", shapes.model(run.model), sizes)
    counts = sorted({1, 2, run.threads})
    entries = [Entry("in process", "tools.benchmarks.episodes", options={"route": "direct"})] + [
        Entry(f"pool, {count} workers", "tools.benchmarks.episodes", options={"route": "pool", "workers": count})
        for count in counts
    ]  # fmt: skip
    yield Case(f"envs: {_sizes('envs', sizes)}", "envs", sizes, run.turns(entries, spec))


def peers(
    run: Run, sizes: Sizes, entries: Sequence[Entry], works: Sequence[str], ceilings: dict[str, float]
) -> Iterator[Case]:
    """Yields each of `works` in all contestants on the same weights; generate at four times the batch too."""
    config = shapes.model(run.model, vocabulary=run.vocabulary)
    config = dataclasses.replace(config, rope_theta=_ROPE_THETA)
    larger = dataclasses.replace(sizes, batch=4 * sizes.batch)
    with tempfile.TemporaryDirectory() as scratch:
        weights = str(Path(scratch) / "model")
        run.tell("writing the weights")
        with Contestant(Entry("weights", "tools.benchmarks.weights"), threads=run.threads) as writer:
            spec = {"model": dataclasses.asdict(config), "seed": run.seed, "directory": weights}
            try:
                writer.ask({"op": "open", "spec": spec}, deadline_s=run.deadline_s)
            except Lost as error:
                raise RuntimeError(f"the weights cannot be written: {error}") from error
        for work in works:
            for at in (sizes, larger) if work == "generate" else (sizes,):
                yield run.case(work, config, at, [_OURS, *entries], ceilings=ceilings, weights=weights)


def grown(
    run: Run, work: str, sizes: Sizes, ceilings: dict[str, float]
) -> Iterator[tuple[growth.Point, Case]]:
    """Yields the work at every point of all its axes."""
    points = list(growth.points(work, sizes, vocabulary=run.vocabulary))
    for number, point in enumerate(points):
        run.tell(f"point {number + 1} of {len(points)}: {point.axis} {point.value}")
        config = shapes.model(run.model, vocabulary=point.vocabulary)
        yield point, run.case(work, config, point.sizes, ceilings=ceilings)


def _sizes(work: str, sizes: Sizes) -> str:
    if work == "envs":
        return f"{sizes.batch} episodes, {sizes.new} steps each"
    if work in ("score", "update"):
        return f"{sizes.batch} x {sizes.length} tokens, {sizes.prompt} of them context"
    return f"{sizes.batch} sequences in groups of {sizes.group}, prompt {sizes.prompt}, {sizes.new} new"


@contextlib.contextmanager
def _telling(console: Console) -> Iterator[Callable[[str], None]]:
    """What is being done: one line that changes on a terminal, a line each elsewhere."""
    if console.is_terminal:
        with console.status("starting") as status:
            yield lambda text: status.update(text)
    else:
        yield lambda text: console.print(text, markup=False, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("work", choices=(*shapes.WORKS, "peers"))
    add("--model", default="small", help=f"{' or '.join(shapes.MODELS)} (random weights)")
    add("--vocabulary", type=int, default=0, help="another vocabulary for it; 0 = its own")
    sizes = Sizes()
    add("--batch", type=int, default=sizes.batch, help="sequences, rows or episodes at a time")
    add("--group", type=int, default=sizes.group, help="sequences that share a prompt")
    add("--prompt", type=int, default=sizes.prompt, help="tokens of a prompt")
    add("--new", type=int, default=sizes.new, help="sampled tokens a sequence; steps an episode for envs")
    add("--length", type=int, default=sizes.length, help="tokens of a row for score and update")
    add("--repeats", type=int, default=5, help="measured rounds")
    add("--warmups", type=int, default=2, help="rounds before them: they compile")
    add("--threads", type=int, default=0, help="CPUs of each contestant; 0 = all")
    add("--deadline", type=float, default=900.0, metavar="SECONDS", help="for one turn of one contestant")
    add("--seed", type=int, default=0)
    knobs = Knobs()
    add("--chunk", type=int, default=knobs.chunk, help="rollout.decode_chunk")
    add("--block", type=int, default=knobs.block, help="learner.score_block")
    add("--remat", choices=("none", "dots", "full"), default=knobs.remat, help="learner.remat")
    add("--microbatch", type=int, default=knobs.microbatch, help="learner.microbatch_tokens; 0 = all rows")
    add("--works", default=",".join(_PEER_WORKS), help="what is run beside the peers, separated by commas")
    add("--peers", default=",".join(install.PEERS), help="which peers, separated by commas")
    add(
        "--install",
        nargs="?",
        const="",
        metavar="DIR",
        help="install them into DIR (default: the cache) first",
    )
    add("--json", type=Path, metavar="FILE", help="write everything here")
    add("--plot", type=Path, metavar="FILE", help="measure along the work's axes and draw them here")
    return parser


def _entries(options: argparse.Namespace, tell: Callable[[str], None]) -> list[Entry]:
    """The peers that were asked for; ValueError for unknown names and those that are not installed."""
    names = _list(options, "peers", tuple(install.PEERS))
    directory = Path(options.install) if options.install else install.default_directory()
    found = []
    for name in names:
        peer = install.PEERS[name]
        entry = install.entry(peer, directory)
        if not entry and options.install is None:
            raise ValueError(
                f"{name} is not installed in {directory}; add --install or leave it out of --peers"
            )
        found.append(entry or install.install(peer, directory, tell=tell))
    return found


def _list(options: argparse.Namespace, flag: str, known: Sequence[str]) -> list[str]:
    """The names that a flag holds; ValueError for unknown ones."""
    names = [name for name in getattr(options, flag).split(",") if name]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown --{flag}={','.join(unknown)}; known: {', '.join(known)}")
    return names


def _run(options: argparse.Namespace, tell: Callable[[str], None]) -> tuple[Run, Sizes]:
    """The settings, checked."""
    for name in ("repeats", "deadline", "chunk", "block"):
        if getattr(options, name) <= 0:
            raise ValueError(f"--{name}={getattr(options, name)} must be positive")
    for name in ("warmups", "threads", "microbatch", "vocabulary"):
        if getattr(options, name) < 0:
            raise ValueError(f"--{name}={getattr(options, name)} must not be negative")
    if options.threads > len(cpus()):
        raise ValueError(f"--threads={options.threads} exceeds the {len(cpus())} CPUs that may be used")
    if options.plot and options.work not in growth.AXES:
        raise ValueError(f"--plot is for {', '.join(growth.AXES)}, not for {options.work}")
    _list(options, "works", _PEER_WORKS)
    shapes.model(options.model, vocabulary=options.vocabulary)
    group = 1 if options.work == "envs" else options.group
    sizes = Sizes(options.batch, group, options.prompt, options.new, options.length)
    if options.work in ("step", "peers") and sizes.group < 2:
        raise ValueError(f"--group={sizes.group} must be at least 2: advantages are relative to a group")
    knobs = Knobs(options.chunk, options.block, options.remat, options.microbatch)
    threads = options.threads or len(cpus())
    return Run(
        options.model, options.vocabulary, knobs, options.repeats, options.warmups, threads, options.deadline,
        options.seed, tell,
    ), sizes  # fmt: skip


def _measure(options: argparse.Namespace, run: Run, sizes: Sizes, record: Record, console: Console) -> None:
    """Measures what was asked for and puts it into `record`, which is written after each case."""
    if options.work == "envs":
        cases = environments(run, sizes)
    else:
        entries = _entries(options, run.tell) if options.work == "peers" else []
        record.ceilings = run.ceilings()
        if options.work == "peers":
            cases = peers(run, sizes, entries, _list(options, "works", _PEER_WORKS), record.ceilings)
        else:
            config = shapes.model(run.model, vocabulary=run.vocabulary)
            cases = iter([run.case(options.work, config, sizes, ceilings=record.ceilings)])
    for case in cases:
        record.cases.append(case)
        case.print(console)
        record.write(options.json)
    if options.plot:
        for pair in grown(run, options.work, sizes, record.ceilings):
            record.curves.append(pair)
            record.write(options.json)
        from tools.benchmarks import growth_plot  # late: this process stays small while it measures

        growth_plot.draw(record.curves, options.plot, title=f"{options.work}: {run.model}, medians and range")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 with a line on stderr where an argument is wrong or ours could not be measured."""
    options = _parser().parse_args(argv)
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH
    try:
        with _telling(console) as tell:
            run, sizes = _run(options, tell)
            settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
            record = Record(settings, report.machine(run.threads))
            _measure(options, run, sizes, record, console)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if ceilings := record.ceilings:
        gigaflops, gigabytes = ceilings["flops_per_s"] / 1e9, ceilings["bytes_per_s"] / 1e9
        console.print(f"ceilings: {gigaflops:.0f} GFLOP/s, {gigabytes:.1f} GB/s")
    for path in (options.json, options.plot):
        if path:
            console.print(str(path), markup=False)
    return 0 if all(case.measured[0].seconds for case in record.cases) else 1


if __name__ == "__main__":
    sys.exit(main())
