"""Tiny random models of transformers, one of each family that our decoder computes."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing here is fetched by name

from pathlib import Path
from typing import Any

import pytest

# head_dim differs from hidden_size / heads on purpose, where the family allows it.
_SIZES: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 80, "max_position_embeddings": 131_072,
}  # fmt: skip
_LLAMA3_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip

# family -> (transformers classes' prefix, config fields)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {"rope_theta": 1e6, "tie_word_embeddings": False}),
    "qwen2-tied": ("Qwen2", {"rope_theta": 1e6, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"rope_theta": 1e6, "head_dim": 16, "tie_word_embeddings": False}),
    "llama3": (
        "Llama",
        {"rope_theta": 5e5, "head_dim": 32, "rope_scaling": _LLAMA3_SCALING, "rms_norm_eps": 1e-5},
    ),
    "smollm2": ("Llama", {"rope_theta": 1e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def reference(family: str) -> Any:
    """A transformers model of the family; every parameter random, also biases and norms, which start at 0 and
    1."""
    torch = pytest.importorskip("torch")
    import transformers

    prefix, fields = FAMILIES[family]
    config = getattr(transformers, f"{prefix}Config")(**_SIZES | fields, attn_implementation="eager")
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval().float()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if "norm" in name else 0.0
            parameter.copy_(centre + 0.15 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def reference_dir(reference: Any, tmp_path: Path) -> Path:
    """The model as transformers saves it."""
    reference.save_pretrained(tmp_path / "reference")
    return tmp_path / "reference"
