"""A small policy's vocabulary: whole words first, byte pairs for what is left, bytes for anything else."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"

# Contents of tokenizer_config.json for `train`'s tokenizer, but for the chat template.
SETTINGS: dict[str, Any] = {"pad_token": PAD, "eos_token": END, "clean_up_tokenization_spaces": False}

# A word, a number, a run of punctuation, each with the blank before it; blank lines; other blanks. Numbers
# stand alone, so "cabinet 8" is " cabinet" + " 8" and copying a name or a number is copying one token.
_WORDS = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s*\n|\s+(?!\S)|\s+"


def train(texts: Iterable[str], *, vocab_size: int, min_count: int) -> tokenizers.Tokenizer:
    """Returns a byte-level BPE tokenizer of at most `vocab_size` tokens; the order of the texts does not
    matter.

    Ids: the four special tokens, the 256 bytes, the words seen at least `min_count` times (most frequent
    first, as many as fit), then merges. Decoding what was encoded gives the text back, whatever the text.
    """
    specials = [PAD, USER, ASSISTANT, END]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(specials) + len(alphabet):
        raise ValueError(
            f"{vocab_size=} must be at least {len(specials) + len(alphabet)} (specials and bytes)"
        )
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    counts = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    ranked = sorted(
        (word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word)
    )
    vocab = [*specials, *alphabet]
    vocab += [word for word in ranked if len(word) > 1][: vocab_size - len(vocab)]
    known = set(vocab)
    merges: list[tuple[str, str]] = []
    for left, right in _learn_merges(counts, alphabet, size=len(alphabet) + vocab_size):
        if len(vocab) == vocab_size and left + right not in known:
            break
        if left in known and right in known:
            merges.append((left, right))
            if left + right not in known:
                known.add(left + right)
                vocab.append(left + right)
    # ignore_merges: a word that is a token is that token, whether or not merges lead to it.
    ids = {token: id_ for id_, token in enumerate(vocab)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, normalized=False) for token in specials]
    )
    return backend


def _learn_merges(counts: Counter[str], alphabet: list[str], *, size: int) -> list[tuple[str, str]]:
    """BPE merges, most useful first, of words in byte-level letters."""
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # byte-level letters hold no blanks
    # A word's weight grows with the root of its count: rare words are what merges are for.
    repeated = (" ".join([word] * max(1, round(counts[word] ** 0.5))) for word in sorted(counts))
    learner.train_from_iterator(repeated, trainer)
    return [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
