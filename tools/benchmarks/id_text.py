"""Token ids as text, for what wants a tokenizer where the work is given in ids: "5 17 3" and back.

No id stands for an end, so nothing stops early.
"""

from __future__ import annotations

from collections.abc import Iterable


def encode(text: str) -> list[int]:
    """The ids that are written out in `text`."""
    return [int(word) for word in text.split()]


def decode(ids: Iterable[int]) -> str:
    """The text that `encode` reads."""
    return " ".join(str(int(token)) for token in ids)
