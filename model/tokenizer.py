"""Text to token ids and back, and the chat turns of a conversation.

Token-in, token-out: `prompt` and `continuation` give the ids to append; the ids that were sampled in between
are kept by the caller as they are and never pass through text again. A conversation is therefore append-only,
also under templates that would rewrite earlier turns (Qwen3 drops old `<think>` blocks): rows are what the
sampler saw.

Special tokens exist only where the chat template writes them. Text from outside (observations, task
descriptions) may spell one, such as "<|im_end|>"; `encode`, `prompt` and `continuation` turn that into
ordinary tokens.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from model import byte_pairs
from model.chat_template import SMALL_TEMPLATE, ChatTemplate

# Characters that shield special-token text while a template is rendered: private use, never in sane text.
_SHIELD = 0xF0000


class Tokenizer:
    """A `tokenizers` tokenizer with its chat template and its special ids.

    Attributes:
      vocab_size: 1 + the largest id; a model may have more embedding rows than that.
      pad_id: fills unused places. May equal a stop id (SmolLM2), so masks come from lengths and never from
        ids.
      stop_ids: ids that end a response: first the one the chat template closes a response with (the one to
        imitate), then the tokenizer's end token and those of generation_config.json.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        settings: dict[str, Any],
        *,
        template: str | None = None,
        generation: dict[str, Any] | None = None,
        template_options: dict[str, Any] | None = None,
    ):
        """`settings` and `generation` are the contents of tokenizer_config.json and generation_config.json;
        `template_options` are given to the template, for example {"enable_thinking": False} for Qwen3."""
        self._backend = backend
        self._settings = settings
        self._generation = generation or {}
        # A special token spelled in text becomes ordinary tokens; _encode_marked places those of a template.
        backend.encode_special_tokens = True
        backend.no_padding()
        backend.no_truncation()
        added = backend.get_added_tokens_decoder()
        self._specials = {token.content: id_ for id_, token in added.items() if token.special}
        longest_first = sorted(self._specials, key=len, reverse=True)
        self._special_pattern = (
            re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None
        )
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values())
        names = {key: _content(value) for key, value in settings.items() if key.endswith("_token")}
        self._template = None
        closer: list[int] = []
        if template is not None:
            texts = {key: value for key, value in names.items() if isinstance(value, str)}
            self._template = ChatTemplate(template, texts | (template_options or {}))
            closer = self._closer()
        end = _as_list(self._generation.get("eos_token_id"))
        named_end = [self._specials[names["eos_token"]]] if names.get("eos_token") in self._specials else []
        self._closing = frozenset(closer)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([*closer, *named_end, *end]))
        if not self.stop_ids:
            raise ValueError("the tokenizer names no end token: set eos_token in tokenizer_config.json")
        pad = names.get("pad_token")
        self.pad_id: int = self._specials[pad] if pad in self._specials else self.stop_ids[0]

    # Text and ids

    def encode(self, text: str) -> list[int]:
        """Returns the ids of plain text: no special token is added, and none is read out of the text."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, show_special: bool = False) -> str:
        """Returns the text of ids, without special tokens (stop, pad, turn markers) unless `show_special`."""
        return self._backend.decode(list(ids), skip_special_tokens=not show_special)

    # Chat turns

    def prompt(self, system: str, user: str) -> list[int]:
        """Returns the ids that open a conversation: system turn, user turn, generation prompt.

        An empty `system` gives no system turn; some templates (SmolLM2, Qwen2.5) then write their own.
        """
        text, shield = self._shielded(user, system)
        messages = [{"role": "system", "content": text[1]}] if system else []
        messages.append({"role": "user", "content": text[0]})
        return self._encode_marked(self._render(messages), shield)

    def continuation(self, user: str, *, closed: bool) -> list[int]:
        """Returns the ids that follow a response: its end-of-turn token, the next user turn, generation
        prompt.

        `closed` says that the response already ends in a stop token (its stop reason is not the length
        limit); the end-of-turn token is then not repeated.
        """
        (text,), shield = self._shielded(user)
        ids = self._encode_marked(self._after_response(text), shield)
        if closed and self._closing:
            position = next(i for i, id_ in enumerate(ids) if id_ in self._closing)
            return ids[position + 1 :]
        return ids

    def _render(self, messages: list[dict[str, str]]) -> str:
        if self._template is None:
            raise ValueError("the tokenizer has no chat template: add chat_template to tokenizer_config.json")
        return self._template.render(messages)

    def _after_response(self, user: str) -> str:
        # The template renders a whole conversation; what follows the marked response is the same for any
        # response.
        marker = chr(_SHIELD - 1)
        messages = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": marker},
            {"role": "user", "content": user},
        ]
        return self._render(messages).rpartition(marker)[2]

    def _closer(self) -> list[int]:
        """The id of the token with which the template ends a response; empty if it uses none."""
        marker = chr(_SHIELD - 2)
        between = self._after_response(marker).partition(marker)[0]
        head = self._special_pattern.match(between.lstrip()) if self._special_pattern else None
        # A template whose first special token opens the next turn (the small one would, without <|end|>)
        # closes none.
        return [self._specials[head.group()]] if head and head.group() not in _openers(self._template) else []

    def _shielded(self, *texts: str) -> tuple[list[str], dict[str, str]]:
        """`texts` with every spelled special token replaced by one private character, and the way back."""
        if self._special_pattern is None or not any(self._special_pattern.search(text) for text in texts):
            return list(texts), {}
        used = set("".join(texts))
        free = (chr(code) for code in range(_SHIELD, 0x10FFFE) if chr(code) not in used)
        shield = {special: next(free) for special in self._specials}
        pattern = self._special_pattern
        hidden = [pattern.sub(lambda match: shield[match.group()], text) for text in texts]
        return hidden, {character: special for special, character in shield.items()}

    def _encode_marked(self, text: str, shield: dict[str, str]) -> list[int]:
        """The ids of rendered text: special tokens become themselves, shielded ones ordinary tokens."""
        if self._special_pattern is None:
            return self.encode(text)
        ids: list[int] = []
        unshield = str.maketrans(shield)
        # re.split with one group alternates text and special token.
        for index, piece in enumerate(self._special_pattern.split(text)):
            if index % 2:
                ids.append(self._specials[piece])
            elif piece:
                ids.extend(self.encode(piece.translate(unshield)))
        return ids

    # Files

    def save(self, directory: str | Path) -> None:
        """Writes tokenizer.json, tokenizer_config.json (with the chat template) and generation_config.json
        (stop and pad ids) into `directory`, for `load` and for transformers' AutoTokenizer."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(directory / "tokenizer.json"))
        settings = self._settings | {"tokenizer_class": "PreTrainedTokenizerFast"}
        if self._template is not None:
            settings["chat_template"] = self._template.source
        _write_json(directory / "tokenizer_config.json", settings)
        generation = self._generation | {"eos_token_id": list(self.stop_ids), "pad_token_id": self.pad_id}
        _write_json(directory / "generation_config.json", generation)

    @classmethod
    def load(cls, directory: str | Path, *, template_options: dict[str, Any] | None = None) -> "Tokenizer":
        """Returns the tokenizer of a Hugging Face directory (or one written by `save`)."""
        directory = Path(directory)
        settings = _read_json(directory / "tokenizer_config.json")
        if (directory / "tokenizer.json").is_file():
            backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        elif (directory / "vocab.json").is_file() or (directory / "tokenizer.model").is_file():
            backend = _converted(directory)
        else:
            raise FileNotFoundError(
                f"no tokenizer.json in {directory}; is it a Hugging Face model directory?"
            )
        template = settings.get("chat_template")
        if isinstance(template, list):  # several named templates; the chat one is called "default"
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if (directory / "chat_template.jinja").is_file():
            template = (directory / "chat_template.jinja").read_text(encoding="utf-8")
        return cls(
            backend,
            settings,
            template=template,
            generation=_read_json(directory / "generation_config.json"),
            template_options=template_options,
        )

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int = 1000, min_count: int = 2) -> "Tokenizer":
        """Returns a byte-level BPE tokenizer for a small policy, the same for the same texts in any order.

        Words, numbers and punctuation runs (with the blank before them) seen at least `min_count` times
        become one token each, the most frequent first; merges learned on all words fill what is left of
        `vocab_size`, and bytes spell the rest, so that decode(encode(text)) == text for any text. The result
        may be smaller than `vocab_size`.

        Chat format: [<|user|>] user text [<|assistant|>] response [<|end|>], one marker a turn.
        """
        return cls(
            byte_pairs.train(texts, vocab_size=vocab_size, min_count=min_count),
            byte_pairs.SETTINGS,
            template=SMALL_TEMPLATE,
        )


def _openers(template: ChatTemplate | None) -> set[str]:
    """The special token, if any, that the template puts in front of a user turn."""
    marker = chr(_SHIELD - 2)
    assert template is not None
    opening = template.render([{"role": "user", "content": marker}]).partition(marker)[0]
    return {opening} if opening else set()


def _converted(directory: Path) -> tokenizers.Tokenizer:
    """The fast tokenizer that transformers makes of older files (vocab.json + merges.txt,
    tokenizer.model)."""
    import transformers  # 2.4 s, and only needed here

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    return tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())


def _content(value: Any) -> Any:
    """A token's text: tokenizer_config.json writes it as a string or as an added-token record."""
    return value["content"] if isinstance(value, dict) else value


def _as_list(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
