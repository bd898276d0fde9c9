"""How speed and memory grow: the points at which one work is measured again, along each of its axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tools.benchmarks.shapes import Sizes

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
VOCABULARIES = (2048, 4096, 8192, 16_384, 32_768, 65_536, 151_936)
TRAJECTORIES = (8, 16, 32, 64, 128)

AXES: dict[str, tuple[str, ...]] = {
    "generate": ("batch", "context", "vocabulary"),
    "score": ("batch", "context", "vocabulary"),
    "update": ("batch", "context", "vocabulary"),
    "step": ("trajectories",),
}


@dataclasses.dataclass(frozen=True)
class Point:
    """One place on an axis."""

    axis: str
    value: int
    sizes: Sizes
    vocabulary: int  # 0 = the model's own


def points(work: str, sizes: Sizes, *, vocabulary: int) -> Iterator[Point]:
    """Yields every point of a work's axes around `sizes`; contexts are measured with one sequence.

    A context is the prompt of generate and the row of score and update.
    """
    for axis in AXES[work]:
        if axis == "vocabulary":
            yield from (Point(axis, value, sizes, value) for value in VOCABULARIES)
        elif axis == "context":
            for value in CONTEXTS:
                if work == "generate":
                    longer = {"prompt": value}
                else:
                    longer = {"length": value, "prompt": min(sizes.prompt, value // 2)}
                one = dataclasses.replace(sizes, batch=1, group=1, **longer)
                yield Point(axis, value, one, vocabulary)
        else:
            for value in BATCHES if axis == "batch" else TRAJECTORIES:
                more = dataclasses.replace(sizes, batch=value, group=min(sizes.group, value))
                yield Point(axis, value, more, vocabulary)
