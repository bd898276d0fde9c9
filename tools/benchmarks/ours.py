"""Our side: `generate`, `score`, `update` and `step` with the parts that training is made of.

generate  Generator.extend on the prompts, then Generator.decode until every sequence has its tokens
score     Learner.score: log-probability and entropy of every response token
update    Learner.update: clipped GRPO loss, gradient, clipped norm, AdamW; scored and credited beforehand
step      Rollout.collect, batching.pack, Learner.place, score, credit and update, as `rl/trainer.py` does them; the
          environment answers at once, within the process

Settings are the defaults of `configs/common.py` (GRPO, no KL term) but for those in `spec["knobs"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from configs import common
from envs.protocol import Event, Observation, StepResult
from model import params as model_params
from model.buckets import Buckets
from model.config import ModelConfig
from model.generate import Generator
from model.weights import pretrained
from rl import batching, builder, optimizer
from rl.learner import Learner
from rl.objective.objective import ObjectiveSettings
from rl.passes import LearnerSettings
from rl.rollout import Rollout, RolloutSettings
from rl.types import Draw, Trajectory, Turn
from sharding.mesh import make_mesh
from tools.benchmarks import id_text

_DEADLINE_S = 60.0  # of an environment that answers at once


class _Opened:
    """Weights, sizes and the shared builders of the works."""

    def __init__(self, spec: dict[str, Any]):
        self.spec, self.sizes, self.knobs = spec, spec["sizes"], spec["knobs"]
        self.config = ModelConfig(**spec["model"])
        self.mesh = make_mesh(data=-1, fsdp=1, tensor=1)
        if spec["weights"]:
            self.params, _ = pretrained.load(spec["weights"], config=self.config, mesh=self.mesh)
        else:
            self.params = model_params.init(jax.random.key(spec["seed"]), self.config, self.mesh)
        self.params = jax.block_until_ready(self.params)
        device = jax.devices()[0]
        self.about = {
            "jax": jax.__version__,
            "device": f"{device.platform} {device.device_kind}",
            "parameters": model_params.count(self.params),
        }

    def generator(self) -> Generator:
        prompt, new = self.sizes["prompt"], self.sizes["new"]
        return Generator(
            self.config,
            slots=self.sizes["batch"],
            length=prompt + new,
            chunk=self.knobs["chunk"],
            buckets=Buckets(widths=(prompt,)),
            mesh=self.mesh,
        )

    def learner(self) -> Learner:
        config = common.base()
        settings = LearnerSettings(
            credit=builder.credit_settings(config.credit),
            first_k=0,
            objective=ObjectiveSettings(**config.objective.to_dict()),
            temperature=1.0,
            epochs=1,
            block=self.knobs["block"],
            remat=self.knobs["remat"],
        )
        o = config.optimizer
        tx = optimizer.adamw(
            o.learning_rate, b1=o.b1, b2=o.b2, eps=o.eps, weight_decay=o.weight_decay, clip_norm=o.clip_norm
        )
        return Learner(self.config, settings, tx, mesh=self.mesh, seed=0)

    def pack(self, learner: Learner, trajectories: Sequence[Trajectory], length: int) -> Any:
        packed = batching.pack(
            trajectories,
            context="step",
            microbatch_tokens=self.knobs["microbatch"] or self.sizes["batch"] * length,
            row_buckets=(length,),
            response_bucket=self.sizes["batch"],
            multiple=learner.row_multiple,
        )
        return learner.place(packed)


class Generate:
    def __init__(self, spec: dict[str, Any]):
        opened = _Opened(spec)
        self.about, self._opened, self._generator = opened.about, opened, opened.generator()

    def run(self) -> dict[str, Any]:
        count, new = self._opened.sizes["batch"], self._opened.sizes["new"]
        every, made = np.ones(count, bool), 1
        prompts, params = self._opened.spec["prompts"], self._opened.params
        first = self._generator.extend(params, range(count), prompts, range(count), restart=every)
        made = np.where(first.full, 0, 1)
        while (left := made < new).any():
            chunk = self._generator.decode(params, left, np.full(count, new, np.int32))
            made = made + chunk.counts
        return {"tokens": int(made.sum())}


class _Learning:
    """A batch of given rows on the mesh."""

    def __init__(self, spec: dict[str, Any]):
        opened = _Opened(spec)
        self.about, self._learner = opened.about, opened.learner()
        self._batch = opened.pack(self._learner, _given(spec), spec["sizes"]["length"])
        self._state = self._learner.init(opened.params)


class Score(_Learning):
    def run(self) -> dict[str, Any]:
        scored = self._learner.score(self._state, self._batch)
        return {"entropy": float(scored.entropy.mean()), "surprisal": float(scored.surprisal.mean())}


class Update(_Learning):
    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        scored = self._learner.score(self._state, self._batch)
        self._state, self._credited = self._learner.credit(self._state, scored, 0)

    def run(self) -> dict[str, Any]:
        self._state, updated = self._learner.update(self._state, self._credited)
        jax.block_until_ready(self._state)
        return {
            "loss": updated.losses["objective/loss"],
            "gradient_norm": updated.losses["optimizer/gradient_norm"],
        }


class Step:
    def __init__(self, spec: dict[str, Any]):
        opened = _Opened(spec)
        self.about, self._opened, self._learner = opened.about, opened, opened.learner()
        self._state = self._learner.init(opened.params)
        sizes = spec["sizes"]
        settings = RolloutSettings(
            context="step",
            slots=sizes["batch"],
            prompt_limit=sizes["prompt"],
            response_limit=sizes["new"],
            gather_s=1.0,
            deadline_s=_DEADLINE_S,
        )
        self._rollout = Rollout(_Answers(spec["rewards"]), opened.generator(), _IdTokenizer(), settings)
        self._draws = [
            Draw(id_text.decode(ids), row // sizes["group"], row % sizes["group"], row)
            for row, ids in enumerate(spec["prompts"])
        ]
        self._length = sizes["prompt"] + sizes["new"]

    def run(self) -> dict[str, Any]:
        learner = self._learner
        trajectories = self._rollout.collect(self._state.params, self._draws)
        batch = self._opened.pack(learner, trajectories, self._length)
        scored = learner.score(self._state, batch)
        self._state, credited = learner.credit(self._state, scored, 0)
        self._state, updated = learner.update(self._state, credited)
        jax.block_until_ready(self._state)
        made = sum(len(turn.response_ids) for t in trajectories for turn in t.turns)
        return {"tokens": made, "gradient_norm": updated.losses["optimizer/gradient_norm"]}


class _IdTokenizer:
    stop_ids: tuple[int, ...] = ()

    def prompt(self, system: str, text: str) -> list[int]:
        return id_text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return id_text.decode(ids)


class _Answers:
    """Environments of one turn that answer at once: the task is the prompt, the reward is given by slot."""

    def __init__(self, rewards: Sequence[float]):
        self._rewards, self._events = rewards, list[Event]()

    def reset(self, slot: int, task: str, seed: int) -> None:
        seen = Observation(system="", prompts=(task,), blind="", anchor="")
        self._events.append(Event(slot=slot, kind="reset", observation=seen))

    def step(self, slot: int, response: str) -> None:
        reward = self._rewards[slot]
        stop = "success" if reward else "failure"
        result = StepResult(None, reward, 0.0, True, reward > 0, response, True, stop)
        self._events.append(Event(slot=slot, kind="step", result=result))

    def poll(self, timeout_s: float) -> list[Event]:
        events, self._events = self._events, []
        return events


def _given(spec: dict[str, Any]) -> list[Trajectory]:
    """The rows of a spec as episodes of one turn."""
    sizes, out = spec["sizes"], []
    for number, (ids, reward) in enumerate(zip(spec["rows"], spec["rewards"], strict=True)):
        context, response = ids[: sizes["prompt"]], ids[sizes["prompt"] :]
        logp = [0.0] * len(response)
        turn = Turn(context, response, logp, "length", "", "", "", "", valid=True, reward=reward)
        draw = Draw("", number // sizes["group"], number % sizes["group"], number)
        out.append(Trajectory(draw, [turn], success=reward > 0))
    return out


_WORKS = {"generate": Generate, "score": Score, "update": Update, "step": Step}


def open_work(spec: dict[str, Any]) -> Any:
    return _WORKS[spec["work"]](spec)
