# pyright: reportMissingImports=false
"""Google's tunix (0.1.7), run in its own environment: its Llama 3 model in float32, loaded from the shared weights.

generate  `tunix.generate.sampler.Sampler` at temperature 1 and top-p 1, called with all prompts: one jitted prefill of
          every row, then a jitted `while_loop` over a dense cache of prompt + new positions; no log-probabilities, as
          its GRPO rollout asks for none by default
score     `tunix.rl.common.compute_per_token_logps` of the completions under the current weights, as its GRPO learner
          does with num_iterations > 1
update    the train step of `tunix.rl.trainer.Trainer`, jitted by its own `jit_train_and_eval_step`, on its registered
          "grpo" loss (beta 0, epsilon 0.2) with advantages from its "grpo" estimator; AdamW behind a clipped global
          norm, as ours; `knobs.remat` "full" is its DECODER, "dots" its BLOCK, here alone: its sampler fails on a
          model with either (flax 0.12.8), so step never has it
step      generate, rewards, advantages, score and update one after the other on one model, in the order of
          `GRPOLearner._generate_and_compute_advantage`; the sampler then takes the new weights as its
          `VanillaRollout` does. By default its learner leaves `score` out (num_iterations 1): here all contestants
          do it, since AEM needs it

Prompts are ids written as text, read back by a tokenizer that only parses them. Padding and end are ids outside of the
vocabulary, so nothing is masked and nothing ends early.
"""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.llama3 import model as llama
from tunix.models.llama3 import params as llama_params
from tunix.rl import algo_core, common
from tunix.rl.grpo.grpo_learner import GRPOConfig
from tunix.rl.trainer import Trainer
from tunix.sft.peft_trainer import TrainingConfig

from tools.benchmarks import id_text

_END = -1
_REMAT = {"none": llama.RematConfig.NONE, "dots": llama.RematConfig.BLOCK, "full": llama.RematConfig.DECODER}


class _Tokenizer:
    """The five methods that tunix asks of a tokenizer."""

    def __init__(self, pad: int):
        self._pad = pad

    def encode(self, text: str) -> list[int]:
        return id_text.encode(text)

    def decode(self, ids: list[int]) -> str:
        return id_text.decode(ids)

    def bos_id(self) -> None:
        return None

    def eos_id(self) -> int:
        return _END

    def pad_id(self) -> int:
        return self._pad


class Peer:
    def __init__(self, spec: dict[str, Any]):
        self._spec, self._sizes = spec, spec["sizes"]
        shape = spec["model"]
        if shape["qkv_bias"] or shape["qk_norm"] or shape["rope_scaling"]:
            raise ValueError("only the Llama family without rope scaling is set up for tunix")
        config = llama.ModelConfig(
            num_layers=shape["layers"],
            vocab_size=shape["vocab_size"],
            embed_dim=shape["width"],
            hidden_dim=shape["hidden"],
            num_heads=shape["heads"],
            head_dim=shape["head_size"],
            num_kv_heads=shape["kv_heads"],
            rope_theta=int(shape["rope_theta"]),
            norm_eps=shape["norm_eps"],
            weight_tying=shape["tied_head"],
            remat_config=_REMAT[spec["knobs"]["remat"] if spec["work"] == "update" else "none"],
        )
        self._model = llama_params.create_model_from_safe_tensors(
            spec["weights"], config, dtype=jnp.dtype(jnp.float32)
        )
        self._pad = shape["vocab_size"]
        device = jax.devices()[0]
        self.about = {
            "tunix": importlib.metadata.version("google-tunix"),
            "jax": jax.__version__,
            "device": f"{device.platform} {device.device_kind}",
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self._model, nnx.Param))),
        }

    def sampler(self) -> Sampler:
        shape = self._spec["model"]
        cache = CacheConfig(
            cache_size=self._sizes["prompt"] + self._sizes["new"],
            num_layers=shape["layers"],
            num_kv_heads=shape["kv_heads"],
            head_dim=shape["head_size"],
        )
        return Sampler(self._model, _Tokenizer(self._pad), cache)

    def generate(self, sampler: Sampler, seed: int) -> np.ndarray:
        """The sampled ids [batch, new]."""
        out = sampler(
            [id_text.decode(ids) for ids in self._spec["prompts"]],
            max_generation_steps=self._sizes["new"],
            max_prompt_length=self._sizes["prompt"],
            eos_tokens=[_END],
            temperature=1.0,
            top_p=1.0,
            seed=seed,
        )
        return np.asarray(out.tokens)

    def train_step(self) -> Any:
        config = GRPOConfig(num_generations=self._sizes["group"], beta=0.0, epsilon=0.2)
        # Its learner sets this from the rollout config.
        config.temperature = 1.0  # type: ignore[attr-defined]
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(1e-6, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01)
        )
        trainer = Trainer(self._model, optimizer, TrainingConfig(eval_every_n_steps=1 << 30), dict)
        trainer.with_loss_fn(
            lambda model, train_example, algo_config: algo_core.grpo_loss_fn(
                model, train_example, algo_config=config, pad_id=self._pad, eos_id=_END
            ),
            has_aux=True,
        )
        trainer.with_gen_model_input_fn(lambda x: {"train_example": x, "algo_config": config})
        return trainer.jit_train_and_eval_step(cache_nnx_graph=True)[0]

    def score(self, prompts: jax.Array, completions: jax.Array) -> jax.Array:
        graph, state = nnx.split(self._model)
        return common.compute_per_token_logps(
            graph, state, prompts, completions, pad_id=self._pad, eos_id=_END, temperature=1.0
        )  # type: ignore[return-value]

    def example(
        self, prompts: jax.Array, completions: jax.Array, old: jax.Array | None
    ) -> common.TrainExample:
        rewards = np.asarray(self._spec["rewards"], np.float32)
        return common.TrainExample(
            prompt_ids=prompts,
            prompt_mask=jnp.ones(prompts.shape, bool),
            completion_ids=completions,
            completion_mask=jnp.ones(completions.shape, bool),
            advantages=jnp.asarray(algo_core.compute_advantages(rewards, self._sizes["group"])),
            ref_per_token_logps=None,
            old_per_token_logps=old,
        )

    def given(self) -> tuple[jax.Array, jax.Array]:
        rows, prompt = jnp.asarray(self._spec["rows"], jnp.int32), self._sizes["prompt"]
        return rows[:, :prompt], rows[:, prompt:]


class Generate(Peer):
    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        self._sampler, self._seed = self.sampler(), 0

    def run(self) -> dict[str, Any]:
        self._seed += 1
        return {"tokens": int(self.generate(self._sampler, self._seed).size)}


class Score(Peer):
    def run(self) -> dict[str, Any]:
        return {"surprisal": -float(jax.block_until_ready(self.score(*self.given())).mean())}


class Update(Peer):
    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        prompts, completions = self.given()
        self._example = self.example(prompts, completions, self.score(prompts, completions))
        self._train_step = self.train_step()

    def run(self) -> dict[str, Any]:
        loss, _, norm = self._train_step(self._example)
        jax.block_until_ready(nnx.state(self._model))
        return {"loss": float(loss), "gradient_norm": float(norm)}


class Step(Peer):
    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        self._sampler, self._train_step, self._seed = self.sampler(), self.train_step(), 0

    def run(self) -> dict[str, Any]:
        self._seed += 1
        started = time.perf_counter()
        completions = self.generate(self._sampler, self._seed)
        rollout = time.perf_counter() - started
        prompts = jnp.asarray(self._spec["prompts"], jnp.int32)
        ids = jnp.asarray(completions, jnp.int32)
        _, _, norm = self._train_step(self.example(prompts, ids, self.score(prompts, ids)))
        self._sampler.transformer_state = nnx.variables(self._model)
        jax.block_until_ready(nnx.state(self._model))
        return {"tokens": int(completions.size), "gradient_norm": float(norm), "rollout_s": rollout}


_WORKS = {"generate": Generate, "score": Score, "update": Update, "step": Step}


def open_work(spec: dict[str, Any]) -> Any:
    return _WORKS[spec["work"]](spec)
