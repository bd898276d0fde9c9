"""A run directory that is opened again stays as it is, and one of an older program opens too."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from configs import arguments, common
from model import params as model_params
from model.tokenizer import Tokenizer
from rl import builder, policy
from rl.checkpoint import Checkpoints
from sharding.mesh import make_mesh
from tools import reopen

SMALL = {
    "model.small": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_size": 8, "hidden": 16},
    "rollout": {"slots": 8, "prompt_limit": 32, "response_limit": 8, "context": "conversation"},
    "log.tensorboard": True,
    "log.wandb_project": "p",
}


def hashes(directory: Path) -> dict[str, str]:
    """Of every file by name; a directory has none."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a checkpoint of iteration 2 and a row of iteration 3, and environments that only know their tasks."""
    config = arguments.lock(arguments.overlay(common.base(), SMALL))
    mesh = make_mesh(**config.mesh.to_dict())
    tokenizer = Tokenizer.train(["go to shelf 1", "take mug 1"] * 4, vocab_size=300)
    model = policy.small_config(config.model, tokenizer.vocab_size)
    learner = builder._learner(config, model, mesh)
    state = learner.init(model_params.init(jax.random.key(0), model, mesh=mesh))
    workdir = tmp_path / "run"
    with Checkpoints(workdir / "checkpoints") as checkpoints:
        checkpoints.save(2, state, {"task_cursor": 5}, tokenizer=tokenizer)
    (workdir / "config.json").write_text(arguments.to_json(config))
    rows = [{"iteration": n, "x": n} for n in (1, 2, 3)]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = SimpleNamespace(tasks=lambda split: [f"{split} 1"])
    monkeypatch.setattr(reopen, "open_pool", lambda config, progress: contextlib.nullcontext(pool))
    return workdir


def edit(workdir: Path, change: Any) -> None:
    config = json.loads((workdir / "config.json").read_text())
    change(config)
    (workdir / "config.json").write_text(json.dumps(config))


def test_nothing_in_the_directory_changes(run: Path) -> None:
    """No row after the checkpoint is dropped, no event file appears, and no Weights & Biases is needed or started."""
    before = hashes(run)
    with reopen.reopen(run) as (config, parts):
        assert (parts.iteration, parts.cursor, config.log.wandb_project) == (2, 5, "p")
        parts.writer.write(3, {"x": 0.0})
    assert hashes(run) == before


def test_a_run_of_an_older_program(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(config: dict[str, Any]) -> None:
        del config["credit"]["aem"]["eps"], config["credit"]["empg"], config["learner"]["value_head"]
        config["credit"]["aem"]["lam"], config["old"] = 3, {"gone": 1}

    edit(run, change)
    with reopen.reopen(run) as (config, _):
        assert (config.credit.aem.eps, config.credit.aem.lam) == (1e-8, 3.0)
        assert config.is_locked and not config.credit.empg.enabled
    said = capsys.readouterr().out
    assert "which have their defaults: credit.aem.eps, credit.empg.*, learner.value_head\n" in said
    assert "gone and left out: old.gone\n" in said


def test_a_run_of_this_program_says_nothing_of_keys(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments.to_json(reopen.load_config(run)) == (run / "config.json").read_text()
    assert capsys.readouterr().out == ""


def test_what_cannot_be_opened(run: Path) -> None:
    edit(run, lambda config: config["credit"]["aem"].update(lam="much"))
    with pytest.raises(ValueError, match=r"config.credit.aem.lam='much' must be of type float"):
        reopen.load_config(run)
    with pytest.raises(ValueError, match="holds no run"), reopen.reopen(run / "checkpoints"):
        pass
    edit(run, lambda config: config["credit"]["aem"].update(lam=1.0))
    (next((run / "checkpoints").glob("*")) / "extra.json").unlink()
    with pytest.raises(ValueError, match="has no checkpoint yet"), reopen.reopen(run):
        pass
