from __future__ import annotations

import subprocess
import sys

import pytest

from envs import processes, registry
from envs.base import Environment


@pytest.mark.parametrize("name", sorted(registry.ENVIRONMENTS))
def test_every_name_resolves(name: str) -> None:
    assert issubclass(registry.resolve(name), Environment)


@pytest.mark.parametrize(
    "name", ["", "alfword", "no.such:Thing", "os:path", "tests.envs.fakes:NotAnEnvironment", "os:"]
)
def test_others_do_not(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown environment|cannot be imported|not a subclass"):
        registry.resolve(name)


def test_a_worker_never_imports_jax() -> None:
    code = "import sys, envs.server; from envs import registry; [registry.resolve(n) for n in registry.ENVIRONMENTS]"
    code += "; print(sorted({'jax', 'rl', 'model', 'configs', 'ml_collections'} & sys.modules.keys()))"
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=processes.ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"
