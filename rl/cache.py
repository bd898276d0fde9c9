"""Names in the cache directory for things that are made once and serve every run that asks for the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rl.downloads import cache_root


def directory(kind: str, *values: Any) -> Path:
    """<cache>/<kind>/<twelve hex digits that change with any of the JSON-like values>."""
    text = json.dumps(values, sort_keys=True, default=lambda value: value.to_dict())
    return cache_root() / kind / hashlib.sha256(text.encode()).hexdigest()[:12]
