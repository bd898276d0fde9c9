"""Checkpoints: arrays through orbax, the rest as JSON, and a manifest that commits and later proves them.

A step directory holds `state/` (orbax), `extra.json`, `tokenizer/` and, written last, `manifest.json` with the size
and CRC-32 of every other file. Without its manifest a directory is the rest of a save that was cut short; with one
that does not match, it is damaged. Both are passed over, so a kill or a bad disk costs one checkpoint, not the run.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import orbax.checkpoint as ocp

from sharding import multihost

_log = logging.getLogger(__name__)
_MANIFEST = "manifest.json"
_PREFIX = "step_"


class Saveable(Protocol):
    """A tokenizer: something that writes itself into a directory."""

    def save(self, path: Any, /) -> Any: ...


def _not_orbax(record: logging.LogRecord) -> bool:
    """Orbax reports each save in several lines and warns about its own defaults; neither helps here."""
    return record.levelno >= logging.ERROR or f"{os.sep}orbax{os.sep}" not in record.pathname


class Checkpoints:
    """The checkpoints of one run directory.

    Args:
      directory: created at the first save.
      keep: how many of the latest checkpoints stay; the one with the best score stays as well.
      report: takes one line about a checkpoint that was passed over.
      asynchronous: `save` returns once the arrays are copied to the host; `wait`, the next `save` and leaving the
        `with` block wait for the rest and raise what went wrong in it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 2,
        report: Callable[[str], None] = _log.warning,
        asynchronous: bool = False,
    ):
        if keep < 1:
            raise ValueError(f"{keep=} must be at least 1; set config.train.keep")
        logging.getLogger("absl").addFilter(_not_orbax)
        self.directory = Path(directory).absolute()
        self.keep, self.report, self.asynchronous = keep, report, asynchronous
        self._orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._damaged: set[int] = set()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for a save in progress and releases orbax's threads."""
        try:
            self.wait()
        finally:
            self._commits.shutdown()
            self._orbax.close()

    def wait(self) -> None:
        """Returns when the last save is committed; raises its error if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def path(self, step: int) -> Path:
        return self.directory / f"{_PREFIX}{step:08d}"

    def tokenizer_path(self, step: int) -> Path:
        """Directory that the tokenizer of a checkpoint was saved into."""
        return self.path(step) / "tokenizer"

    def steps(self) -> list[int]:
        """Committed steps, ascending; their files are not read."""
        names = (path.name for path in self.directory.glob(f"{_PREFIX}*") if (path / _MANIFEST).is_file())
        return sorted(
            int(name.removeprefix(_PREFIX)) for name in names if name.removeprefix(_PREFIX).isdigit()
        )

    def latest_step(self) -> int | None:
        """The last intact step, or None; says which later ones it passed over."""
        self.wait()
        for name in self._torn():
            self.report(f"checkpoint {name} was not finished and is passed over")
        for step in reversed(self.steps()):
            problem = self._problem(step)
            if problem is None:
                return step
            self._damaged.add(step)
            self.report(f"checkpoint {self.path(step).name} is damaged ({problem}) and is passed over")
        return None

    def save(
        self,
        step: int,
        state: Any,
        extra: dict[str, Any],
        *,
        tokenizer: Saveable | None = None,
        score: float | None = None,
    ) -> bool:
        """Writes a checkpoint; returns False, and writes nothing, if this step is already committed.

        Args:
          state: pytree of arrays, on any mesh.
          extra: what JSON can hold: task cursor, config, counters.
          score: higher is better; the best scored checkpoint outlives `keep`.
        """
        self.wait()
        if step in self.steps() and step not in self._damaged:
            return False
        # JSON first: what cannot be stored fails before anything is written.
        text = json.dumps(extra, indent=1, sort_keys=True)
        path = self.path(step)
        if multihost.is_writer():
            _remove(path)
            path.mkdir(parents=True)
        multihost.barrier(f"checkpoint {step} begins")
        self._orbax.save(path / "state", args=ocp.args.PyTreeSave(state))

        def commit() -> None:
            self._orbax.wait_until_finished()
            if multihost.is_writer():
                (path / "extra.json").write_text(text)
                if tokenizer is not None:
                    tokenizer.save(path / "tokenizer")
                _write_manifest(path, score)
                self._damaged.discard(step)
                self._clean()

        if self.asynchronous:
            self._pending = self._commits.submit(commit)
        else:
            commit()
        return True

    def extra(self, step: int) -> dict[str, Any]:
        """The JSON part of a checkpoint."""
        return json.loads((self.path(step) / "extra.json").read_text())

    def restore(
        self, like: Any, *, step: int | None = None, partial: bool = False
    ) -> tuple[int, Any, dict] | None:
        """Returns (step, state, extra) of the last intact checkpoint, or of `step`; None if there is none.

        Args:
          like: pytree of the saved structure; its leaves (arrays or ShapeDtypeStructs) give shapes, dtypes and, where
            they have one, the sharding to restore onto, which need not be the one that was saved.
          partial: `like` may leave out parts of the saved tree, such as the optimizer.

        Raises:
          ValueError: if the asked-for step is missing or damaged, or `like` does not fit an intact checkpoint.
        """
        if step is None:
            step = self.latest_step()
            if step is None:
                return None
        elif problem := self._problem(step):
            raise ValueError(f"checkpoint {self.path(step)} cannot be read: {problem}")
        saved: Any = self._orbax.metadata(self.path(step) / "state").item_metadata
        _check_fits(like, saved.tree, self.path(step), partial)
        arguments = ocp.args.PyTreeRestore(
            jax.tree.map(_abstract, like),
            ocp.checkpoint_utils.construct_restore_args(like),
            partial_restore=partial,
        )
        return step, self._orbax.restore(self.path(step) / "state", args=arguments), self.extra(step)

    def _problem(self, step: int) -> str | None:
        """What is wrong with the files of a committed step."""
        path = self.path(step)
        try:
            manifest = json.loads((path / _MANIFEST).read_text())
            files: dict[str, list[int]] = manifest["files"]
            json.loads((path / "extra.json").read_text())
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{type(error).__name__} in its manifest or extra.json"
        for name, (size, _) in files.items():  # sizes first: the common damage is found without reading
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size} of {size} bytes"
        bad = [name for name, crc in _checksums(path, files).items() if crc != files[name][1]]
        return f"{bad[0]} does not match its checksum" if bad else None

    def _torn(self) -> list[str]:
        paths = self.directory.glob(f"{_PREFIX}*")
        return sorted(path.name for path in paths if path.is_dir() and not (path / _MANIFEST).is_file())

    def _clean(self) -> None:
        """Removes torn and damaged checkpoints and those that are neither recent nor best."""
        for name in self._torn():
            _remove(self.directory / name)
        steps = [step for step in self.steps() if step not in self._damaged]
        scores = {step: score for step in steps if (score := _score(self.path(step))) is not None}
        kept = set(steps[-self.keep :]) | ({max(scores, key=lambda s: (scores[s], s))} if scores else set())
        for step in set(self.steps()) - kept:
            _remove(self.path(step))
            self._damaged.discard(step)


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=getattr(leaf, "sharding", None))


def _check_fits(like: Any, saved: Any, path: Path, partial: bool) -> None:
    """Raises where shapes or names differ: orbax would cut, pad or cast some of them without a word."""
    wanted = {_key(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(like)[0]}
    stored = {_key(keys): leaf for keys, leaf in jax.tree_util.tree_flatten_with_path(saved)[0]}
    missing, more = sorted(wanted.keys() - stored.keys()), sorted(stored.keys() - wanted.keys())
    if missing or (more and not partial):
        raise ValueError(
            f"checkpoint {path} holds another tree: it lacks {missing[:5]} and has {more[:5]} besides"
        )
    for key, leaf in wanted.items():
        shape, dtype = tuple(stored[key].shape), stored[key].dtype
        if tuple(leaf.shape) != shape or np.dtype(leaf.dtype) != np.dtype(dtype):
            raise ValueError(
                f"checkpoint {path}: {key} is {dtype}{list(shape)}, not {leaf.dtype}{list(leaf.shape)}"
            )


def _key(keys: tuple[Any, ...]) -> str:
    return ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in keys)


def _checksums(path: Path, names: Any) -> dict[str, int]:
    def crc(name: str) -> int:
        value = 0
        with open(path / name, "rb") as file:
            while block := file.read(1 << 22):
                value = zlib.crc32(block, value)
        return value

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # zlib lets other threads run
        return dict(zip(names, pool.map(crc, names), strict=True))


def _write_manifest(path: Path, score: float | None) -> None:
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    sums = _checksums(path, names)
    files = {name: [(path / name).stat().st_size, sums[name]] for name in names}
    for name in names:
        _sync(path / name)
    temporary = path / f".{_MANIFEST}"
    temporary.write_text(json.dumps({"score": score, "files": files}))
    _sync(temporary)
    os.replace(temporary, path / _MANIFEST)
    _sync(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _score(path: Path) -> float | None:
    try:
        return json.loads((path / _MANIFEST).read_text())["score"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(path: Path) -> None:
    """Removes a step directory; its manifest goes first, so that what a kill leaves behind counts as torn."""
    (path / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
