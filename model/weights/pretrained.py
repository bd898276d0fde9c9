"""Pretrained models from outside and back: a Hugging Face directory or a GGUF file in, a Hugging Face
directory out."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from model import params as parameters
from model.config import ModelConfig
from model.tokenizer import Tokenizer
from model.weights import gguf, names, safetensors
from sharding import transfer

Reader = safetensors.Reader | gguf.Reader

# What belongs to a tokenizer in a Hugging Face directory, and the ids that end generation.
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


def load_config(path: str | Path, *, dtype: str = "float32") -> ModelConfig:
    """The config of a Hugging Face directory or a .gguf file."""
    if _is_gguf(path):
        with gguf.Reader(path) as reader:
            return reader.config(dtype=dtype)
    file = Path(path) / "config.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"no config.json in {path}; expected a Hugging Face model directory or a .gguf file"
        )
    return ModelConfig.from_hf(json.loads(file.read_text(encoding="utf-8")), dtype=dtype)


def load_tokenizer(path: str | Path, *, template_options: dict[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face directory or a .gguf file."""
    if _is_gguf(path):
        with gguf.Reader(path) as reader:
            return reader.tokenizer()
    return Tokenizer.load(path, template_options=template_options)


def load(
    path: str | Path, *, config: ModelConfig | None = None, dtype: str = "float32", mesh: Mesh | None = None
) -> tuple[parameters.Params, ModelConfig]:
    """(params, config) of a Hugging Face directory (safetensors, sharded or not) or a .gguf file
    (dequantised).

    The parameters are cast to the config's dtype; `config` replaces the one that lies beside the weights
    (`dtype` is then unused). With `mesh` each leaf goes to its shards as soon as it is read, so that the host
    holds one stacked leaf at a time. ValueError names tensors that are missing, unexpected or of another
    shape.
    """
    with _reader(path) as reader:
        if config is None:
            # Opening a GGUF file parses its vocabulary, which takes seconds: not twice.
            config = (
                reader.config(dtype=dtype)
                if isinstance(reader, gguf.Reader)
                else load_config(path, dtype=dtype)
            )
        spec = parameters.spec(config)
        tree: parameters.Params = {section: {} for section in spec}
        names.check(reader.names(), config)
        for name in names.table(config):
            section, leaf = name.path
            array = _stacked(reader, name, spec[section][leaf].shape, dtype=config.dtype)
            placed = (
                jnp.asarray(array)
                if mesh is None
                else transfer.to_device(array, mesh, spec[section][leaf].axes)
            )
            tree[section][leaf] = jax.block_until_ready(placed)
    return tree, config


def export(
    params: parameters.Params,
    config: ModelConfig,
    tokenizer: str | Path | Tokenizer | None,
    directory: str | Path,
    *,
    dtype: str | None = None,
    shard_bytes: int = 2_000_000_000,
) -> None:
    """Writes a directory that transformers loads: config.json, the weights in `dtype` (None: the config's) as
    safetensors, and the tokenizer's files, copied from a directory or saved from a Tokenizer.

    One tensor at a time leaves the devices and one shard is held. A tied head is not stored. The directory
    appears when it is complete; FileExistsError if something is there already.
    """
    directory = Path(directory)
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; name another directory or remove it")
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    dtype = dtype or config.dtype
    hf = config.to_hf() | {"torch_dtype": dtype}
    (unfinished / "config.json").write_text(json.dumps(hf, indent=2) + "\n", encoding="utf-8")
    safetensors.write(_outside(params, config, dtype=dtype), unfinished, shard_bytes=shard_bytes)
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(unfinished)
    elif tokenizer is not None:
        for file in _TOKENIZER_FILES:
            if (Path(tokenizer) / file).is_file():
                shutil.copyfile(Path(tokenizer) / file, unfinished / file)
    if directory.exists():
        directory.rmdir()
    unfinished.rename(directory)


def _is_gguf(path: str | Path) -> bool:
    return Path(path).suffix == ".gguf"


def _reader(path: str | Path) -> Reader:
    return gguf.Reader(path) if _is_gguf(path) else safetensors.Reader(path)


def _stacked(reader: Reader, name: names.Name, shape: tuple[int, ...], *, dtype: str) -> np.ndarray:
    """One leaf of the tree as a host array, its layers read one by one."""
    array = np.empty(shape, dtype=jnp.dtype(dtype))
    parts = (
        [(array[layer], name.key(layer)) for layer in range(shape[0])]
        if name.stacked
        else [(array, name.outside)]
    )
    for part, key in parts:
        try:
            part[...] = name.to_ours(reader.read(key), part.shape)
        except ValueError as error:
            raise ValueError(f"{key}: {error}; does config.json belong to these weights?") from error
    return array


def _outside(
    params: parameters.Params, config: ModelConfig, *, dtype: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Every parameter under its Hugging Face name, layer by layer."""
    for layer in range(config.layers):
        for name in names.table(config):
            if not name.stacked and layer:
                continue
            section, leaf = name.path
            array = params[section][leaf]
            array = array[layer] if name.stacked else array
            yield name.key(layer), name.to_outside(transfer.to_host(array).astype(jnp.dtype(dtype)))
