# pyright: reportMissingImports=false
"""Hugging Face's TRL (1.16) on CPU torch, run in its own environment: a `GRPOTrainer` on the shared weights, float32.

generate  its `_generate_single_turn`: transformers' `generate` of all prompts at temperature 1 with its dynamic cache
score     its `_get_per_token_logps_and_entropies` of the completions, without gradient
update    its `_compute_loss` (loss_type "grpo", beta 0, epsilon 0.2; logits of the completions only, entropies for its
          report), backward, clipped global norm 1, and the AdamW that its `create_optimizer` makes
step      generate, rewards, advantages as in its `_generate_and_score_completions`, score and update one after the
          other on one model. By default the trainer leaves `score` out (num_iterations 1): here all contestants do
          it, since AEM needs it

Activation checkpointing, which TRL turns on by default, follows `knobs.remat`: off where that is "none". The tokenizer
only satisfies the trainer: prompts go in and completions come out as ids; padding and end are ids outside of the
model's vocabulary, so nothing is masked and nothing ends early.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import datasets
import tokenizers
import torch
import transformers
import trl

_PAD = "<pad>"


class Peer:
    def __init__(self, spec: dict[str, Any]):
        self._spec, self._sizes = spec, spec["sizes"]
        model = transformers.AutoModelForCausalLM.from_pretrained(spec["weights"], dtype=torch.float32)
        # Llama's default end id is one of ours.
        model.generation_config.eos_token_id = model.config.eos_token_id = None
        self._model = model
        # The trainer may write into it; it goes with the process's directory of temporary files.
        self._output = tempfile.TemporaryDirectory()
        self._trainer = self._build(model)
        self._model.train()
        self._optimizer = self._trainer.create_optimizer()
        self.about = {
            "trl": trl.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "attention": model.config._attn_implementation,
            "parameters": sum(p.numel() for p in model.parameters()),
        }

    def _build(self, model: Any) -> trl.GRPOTrainer:
        sizes = self._sizes
        new = sizes["length"] - sizes["prompt"] if self._spec["rows"] else sizes["new"]
        args = trl.GRPOConfig(
            output_dir=self._output.name,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=sizes["batch"],
            num_generations=sizes["group"],
            max_completion_length=new,
            loss_type="grpo",
            beta=0.0,
            epsilon=0.2,
            temperature=1.0,
            learning_rate=1e-6,
            weight_decay=0.01,
            max_grad_norm=1.0,
            gradient_checkpointing=self._spec["knobs"]["remat"] != "none",
            report_to="none",
            disable_tqdm=True,
        )
        return trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=args,
            train_dataset=datasets.Dataset.from_list([{"prompt": "0"}] * sizes["batch"]),
            processing_class=_tokenizer(self._spec["model"]["vocab_size"]),
        )

    def generate(self) -> list[list[int]]:
        """The sampled ids [batch, new]."""
        ids, _ = self._trainer._generate_single_turn(
            self._spec["prompts"], None, {}, num_generations=self._sizes["group"]
        )
        return ids

    def score(self, ids: torch.Tensor, keep: int) -> torch.Tensor:
        with torch.no_grad():
            mask = torch.ones_like(ids)
            return self._trainer._get_per_token_logps_and_entropies(self._model, ids, mask, keep)[0]

    def inputs(self, prompts: torch.Tensor, completions: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the trainer's loss reads, scored under the current weights."""
        rewards = torch.tensor(self._spec["rewards"]).view(-1, self._sizes["group"])
        centred = rewards - rewards.mean(1, keepdim=True)
        return {
            "prompt_ids": prompts,
            "prompt_mask": torch.ones_like(prompts),
            "completion_ids": completions,
            "completion_mask": torch.ones_like(completions),
            "advantages": (centred / (rewards.std(1, keepdim=True) + 1e-4)).flatten(),
            "old_per_token_logps": self.score(torch.cat([prompts, completions], 1), completions.shape[1]),
        }

    def update(self, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
        # The training loop, which is not run, sets it.
        self._trainer.current_gradient_accumulation_steps = 1
        loss = self._trainer._compute_loss(self._model, inputs)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {"loss": float(loss), "gradient_norm": float(norm)}

    def given(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.tensor(self._spec["rows"])
        return rows[:, : self._sizes["prompt"]], rows[:, self._sizes["prompt"] :]


class Generate(Peer):
    def run(self) -> dict[str, Any]:
        return {"tokens": sum(map(len, self.generate()))}


class Score(Peer):
    def run(self) -> dict[str, Any]:
        prompts, completions = self.given()
        logp = self.score(torch.cat([prompts, completions], 1), completions.shape[1])
        return {"surprisal": -float(logp.mean())}


class Update(Peer):
    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        self._inputs = self.inputs(*self.given())

    def run(self) -> dict[str, Any]:
        return self.update(self._inputs)


class Step(Peer):
    def run(self) -> dict[str, Any]:
        started = time.perf_counter()
        completions = self.generate()
        rollout = time.perf_counter() - started
        inputs = self.inputs(torch.tensor(self._spec["prompts"]), torch.tensor(completions))
        made = sum(map(len, completions))
        return self.update(inputs) | {"tokens": made, "rollout_s": rollout}


def _tokenizer(size: int) -> transformers.PreTrainedTokenizerFast:
    """Ids as words, with the end after the model's last id."""
    words = {str(number): number for number in range(size)} | {_PAD: size}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=_PAD))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=_PAD, eos_token=_PAD)


_WORKS = {"generate": Generate, "score": Score, "update": Update, "step": Step}


def open_work(spec: dict[str, Any]) -> Any:
    return _WORKS[spec["work"]](spec)
