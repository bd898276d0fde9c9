"""Tokenizer against transformers' AutoTokenizer on the same directory: ids, chat template, end token."""

from pathlib import Path

import pytest

from model.tokenizer import Tokenizer
from tests.model.test_tokenizer import CHATML, LLAMA3, QWEN3, TEXTS, chatml_tokenizer, llama3_tokenizer

CONVERSATION = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "You see a cabinet 8.\n\nYour task is to: look."},
]


@pytest.mark.parametrize("name", ["small", CHATML, QWEN3, LLAMA3], ids=["small", "chatml", "qwen3", "llama3"])
def test_same_ids_as_transformers(name: str, tmp_path: Path):
    import transformers

    if name == "small":
        tokenizer = Tokenizer.train(TEXTS, vocab_size=500)
    else:
        tokenizer = llama3_tokenizer() if name == LLAMA3 else chatml_tokenizer(name)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)
        assert theirs.decode(theirs.encode(text, add_special_tokens=False)) == text
    system, user = (message["content"] for message in CONVERSATION)
    expected = theirs.apply_chat_template(CONVERSATION, add_generation_prompt=True, return_dict=False)
    assert tokenizer.prompt(system, user) == expected
    assert theirs.eos_token_id in tokenizer.stop_ids
    # Specials spelled in text are what transformers calls split.
    assert tokenizer.encode("a<|im_end|><|end|>") == theirs.encode(
        "a<|im_end|><|end|>", add_special_tokens=False, split_special_tokens=True
    )
