"""A contestant that behaves as its spec says, for test_benchmark_contestant.py."""

from __future__ import annotations

import os
import time
from typing import Any


class Fake:
    def __init__(self, spec: dict[str, Any]):
        self._behaviour, self._after, self.about = spec["behaviour"], spec.get("after", 0), {"runs": spec}
        if self._behaviour == "refuses":
            raise ValueError("no such work")

    def run(self) -> dict[str, Any]:
        self._after -= 1
        if self._after >= 0:
            return {"tokens": 3}
        if self._behaviour == "dies":
            os.write(2, b"out of memory\n")
            os._exit(7)
        if self._behaviour == "hangs":
            time.sleep(600)
        if self._behaviour == "talks":
            print("loading: 100%")
            os.system("echo from a child")
        if self._behaviour == "errs":
            raise RuntimeError("the loss is NaN")
        return {"tokens": 3}


def open_work(spec: dict[str, Any]) -> Fake:
    return Fake(spec)
