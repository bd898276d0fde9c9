"""Safetensors directories of Hugging Face, read one tensor at a time and written in shards of bounded
size."""

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy; safetensors asks numpy for it by name)
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Reader:
    """The tensors of a directory that holds model.safetensors, or its shards and their index.

    A file is mapped when a tensor of it is asked for; `read` copies out that tensor alone. Use as a context
    manager.
    """

    def __init__(self, directory: str | Path):
        self._directory = Path(directory)
        self._files: dict[str, Any] = {}
        self._closing = contextlib.ExitStack()
        if (self._directory / _INDEX).is_file():
            index = json.loads((self._directory / _INDEX).read_text(encoding="utf-8"))
            self._where: dict[str, str] = index["weight_map"]
            absent = sorted({file for file in self._where.values() if not (self._directory / file).is_file()})
            if absent:
                raise FileNotFoundError(
                    f"{self._directory / _INDEX} names files that are not there: {absent}"
                )
        elif (self._directory / _SINGLE).is_file():
            self._where = dict.fromkeys(self._file(_SINGLE).keys(), _SINGLE)
        else:
            raise FileNotFoundError(
                f"neither {_SINGLE} nor {_INDEX} in {self._directory}; "
                "older formats (pytorch_model.bin) are not read"
            )

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._where)

    def read(self, name: str) -> np.ndarray:
        """The tensor, in its stored dtype. KeyError names it where the index has it and the file has not."""
        file = self._file(self._where[name])
        if name not in file.keys():  # noqa: SIM118  (a safetensors handle is no mapping)
            raise KeyError(
                f"{name} is not in {self._directory / self._where[name]}, where the index places it"
            )
        return file.get_tensor(name)

    def _file(self, name: str) -> Any:
        if name not in self._files:
            opened = safe_open(str(self._directory / name), framework="numpy")
            self._files[name] = self._closing.enter_context(opened)
        return self._files[name]

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()


def write(tensors: Iterable[tuple[str, np.ndarray]], directory: str | Path, *, shard_bytes: int) -> None:
    """Writes the tensors into `directory` as one model.safetensors, or as shards of at most `shard_bytes` (a
    larger tensor is a shard of its own) and their index. No more than one shard is held in memory."""
    directory = Path(directory)
    shards: list[dict[str, int]] = []
    held: dict[str, np.ndarray] = {}

    def part(number: int) -> Path:
        return directory / f"part-{number}.safetensors"

    def flush() -> None:
        save_file(held, part(len(shards)), metadata={"format": "pt"})
        part(len(shards)).chmod(0o644)  # it comes readable by its owner alone
        shards.append({name: array.nbytes for name, array in held.items()})
        held.clear()

    for name, array in tensors:
        if held and sum(other.nbytes for other in held.values()) + array.nbytes > shard_bytes:
            flush()
        held[name] = array
    flush()
    # The number of shards, which their names hold, is known only now.
    if len(shards) == 1:
        part(0).rename(directory / _SINGLE)
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        part(number).rename(directory / file)
        where |= dict.fromkeys(shard, file)
    size = sum(sum(shard.values()) for shard in shards)
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    (directory / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
