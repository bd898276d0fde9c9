"""The few sizes that generation's calls are rounded up to, since every distinct shape is a compilation."""

from __future__ import annotations

import dataclasses

# What a call of `extend` costs beside its tokens, in tokens: decides when rows of unlike width are split.
CALL_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Sizes that calls are rounded up to, ascending. Each is completed by its largest possible value.

    rows: slots computed by a call; widths: prompt tokens fed per row; pasts: cache positions attended to
    (0, for calls whose rows all start from empty, is always one).
    """

    rows: tuple[int, ...] = ()
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)
    pasts: tuple[int, ...] = ()

    def complete(self, *, slots: int, length: int) -> Buckets:
        """These buckets with 0 and the maxima included and what is beyond them left out."""
        return Buckets(
            rows=_complete(self.rows, slots),
            widths=_complete(self.widths, length),
            pasts=(0, *_complete(self.pasts, length)),
        )


def groups(items: list[int], widths: list[int], buckets: Buckets) -> list[list[int]]:
    """Items in calls of similar width: the split of the sorted items that computes the fewest padded tokens."""
    items = sorted(items, key=lambda i: widths[i])
    ends = [0]  # Only the boundaries between width buckets are worth a cut.
    for n in range(1, len(items) + 1):
        if n == len(items) or round_up(widths[items[n - 1]], buckets.widths) < widths[items[n]]:
            ends.append(n)
    best: list[tuple[int, list[int]]] = [(0, [])]
    for j in range(1, len(ends)):
        width = round_up(widths[items[ends[j] - 1]], buckets.widths)
        options = [
            (
                best[i][0] + CALL_TOKENS + width * round_up(ends[j] - ends[i], buckets.rows),
                [*best[i][1], ends[i]],
            )
            for i in range(j)
        ]
        best.append(min(options))
    cuts = [*best[-1][1], len(items)]
    return [items[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]


def round_up(size: int, buckets: tuple[int, ...]) -> int:
    return next(bucket for bucket in buckets if bucket >= size)


def _complete(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    return (*sorted({size for size in sizes if 0 < size < largest}), largest)
