"""Builds a run's parts from its config: where a ConfigDict becomes frozen settings and nothing later sees one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from model import params as model_params
from model import value_head
from model.config import ModelConfig
from model.generate import Buckets, Generator
from model.tokenizer import Tokenizer
from rl import optimizer, policy
from rl.blind import BlindSettings
from rl.checkpoint import Checkpoints
from rl.credit.aem import AemSettings
from rl.credit.assign import CreditSettings
from rl.credit.empg import EmpgSettings
from rl.credit.estimators import EstimatorSettings
from rl.credit.outliers import OutlierSettings
from rl.learner import Learner, LearnerSettings
from rl.metrics import MetricsWriter
from rl.objective.attribution import AttributionSettings
from rl.objective.objective import ObjectiveSettings
from rl.progress import Progress
from rl.rollout import Rollout, RolloutSettings
from rl.selection import SelectionSettings
from rl.step_groups import StepGroupSettings
from rl.trainer import Parts
from sharding.mesh import make_mesh


def build(config: Any, workdir: Path, *, pool: Any, progress: Progress) -> Parts:
    """Everything that a trainer needs, at the last whole iteration of the run directory or at the start."""
    mesh = make_mesh(**config.mesh.to_dict())
    tasks = {split: pool.tasks(split) for split in ("train", *config.eval.splits)}
    for split, names in tasks.items():
        if not names:
            raise ValueError(
                f"no games in split {split!r} with env.settings.task_types={config.env.settings.task_types}"
            )
    checkpoints = Checkpoints(workdir / "checkpoints", keep=config.train.keep, report=progress.message)
    step, cursor = checkpoints.latest_step(), 0
    if step is None:
        params, model, tokenizer = policy.start(
            config, mesh=mesh, pool=pool, tasks=tasks["train"], progress=progress
        )
        model = dataclasses.replace(model, value_head=config.learner.value_head)
        if model.value_head:
            params = value_head.add(params, model, model_params.shardings(model, mesh))
        learner = _learner(config, model, mesh)
        state, step = learner.init(params), 0
    else:
        model, tokenizer = policy.described(config, checkpoints.tokenizer_path(step))
        model = dataclasses.replace(model, value_head=config.learner.value_head)
        learner = _learner(config, model, mesh)
        restored = checkpoints.restore(learner.like(), step=step)
        assert restored is not None
        state, cursor = restored[1], restored[2]["task_cursor"]
        progress.message(f"resuming after iteration {step} of {config.train.iterations} in {workdir}")
    progress.begin(step)
    writer = MetricsWriter(
        workdir,
        resume=step,
        tensorboard=config.log.tensorboard,
        wandb_project=config.log.wandb_project,
        config=config.to_dict(),
    )
    return Parts(
        workdir=workdir,
        learner=learner,
        state=state,
        rollout=_rollout(config, config.rollout, model, tokenizer, pool, mesh),
        eval_rollout=_rollout(config, config.eval, model, tokenizer, pool, mesh),
        tasks=tasks,
        tokenizer=tokenizer,
        writer=writer,
        checkpoints=checkpoints,
        progress=progress,
        iteration=step,
        cursor=cursor,
        selection=selection(config.selection),
        step_groups=StepGroupSettings(**config.step_groups.to_dict()),
        blind=blind_settings(config.attribution),
    )


def _learner(config: Any, model: ModelConfig, mesh: Any) -> Learner:
    credit, learner = config.credit, config.learner
    settings = LearnerSettings(
        credit=credit_settings(credit),
        first_k=credit.aem.first_k,
        objective=ObjectiveSettings(**config.objective.to_dict()),
        temperature=config.rollout.temperature if learner.divide_by_temperature else 1.0,
        epochs=learner.epochs,
        denominator=learner.denominator,
        block=learner.score_block,
        remat=learner.remat,
        attribution=attribution_settings(config.attribution),
    )
    o = config.optimizer
    # Mini-batches vary with episode lengths, so the schedule counts iterations' worth of nominal steps.
    rate = optimizer.schedule(
        o.schedule,
        learning_rate=o.learning_rate,
        warmup=o.warmup,
        steps=o.decay_steps,
        end_fraction=o.end_fraction,
    )
    tx = optimizer.adamw(
        rate, b1=o.b1, b2=o.b2, eps=o.eps, weight_decay=o.weight_decay, clip_norm=o.clip_norm
    )
    return Learner(model, settings, tx, mesh=mesh, seed=config.seed)


def selection(section: Any) -> SelectionSettings:
    return SelectionSettings(**section.to_dict())


def attribution_settings(section: Any) -> AttributionSettings:
    return AttributionSettings(
        section.reward_coef,
        section.penalty_coef,
        section.kind,
        stop_gradient_full=section.stop_gradient_full,
        stop_gradient_masked=section.stop_gradient_masked,
    )


def blind_settings(section: Any) -> BlindSettings | None:
    shapes = BlindSettings(section.width, tuple(section.rows))
    return shapes if attribution_settings(section).enabled else None


def credit_settings(credit: Any) -> CreditSettings:
    modulation, empg, outliers = (section.to_dict() for section in (credit.aem, credit.empg, credit.outliers))
    enabled, lam, _ = (modulation.pop(name) for name in ("enabled", "lam", "first_k"))
    return CreditSettings(
        estimator=EstimatorSettings(
            credit.estimator,
            credit.unit,
            credit.ddof,
            credit.eps,
            credit.singleton,
            whiten=credit.whiten,
            gamma=credit.gamma,
            omega=credit.omega,
            std=credit.std,
            gae_lam=credit.gae_lam,
        ),
        penalty=credit.penalty,
        aem=AemSettings(**modulation) if enabled else None,
        lam=lam,
        empg=EmpgSettings(**empg) if empg.pop("enabled") else None,
        sign_mask=credit.sign_mask,
        outliers=OutlierSettings(**outliers) if outliers.pop("enabled") else None,
    )


def _rollout(
    config: Any, sampling: Any, model: ModelConfig, tokenizer: Tokenizer, pool: Any, mesh: Any
) -> Rollout:
    rollout = config.rollout
    length = rollout.prompt_limit + (rollout.response_limit if rollout.context == "step" else 0)
    generator = Generator(
        model,
        slots=rollout.slots,
        length=length,
        chunk=rollout.decode_chunk,
        buckets=Buckets(
            tuple(rollout.row_buckets), tuple(rollout.width_buckets), tuple(rollout.past_buckets)
        ),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        stop_ids=tokenizer.stop_ids,
        mesh=mesh,
    )
    settings = RolloutSettings(
        context=rollout.context,
        slots=rollout.slots,
        prompt_limit=rollout.prompt_limit,
        response_limit=rollout.response_limit,
        gather_s=rollout.gather_s,
        deadline_s=config.env.deadline_s,
    )
    return Rollout(pool, generator, tokenizer, settings)
