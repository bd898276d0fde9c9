"""Settings of every test: 8 fake CPU devices, no network, shapes checked at run time."""

from __future__ import annotations

import os
from pathlib import Path

# Before anything imports jax.
os.environ["JAX_PLATFORMS"] = "cpu"
# Most of a test's time is compilation of something that runs once, so these programs are optimised less (40 % less CPU
# time for the learner's tests from an empty cache). The end-to-end tests run programs as users get them.
_FLAGS = {
    "--xla_force_host_platform_device_count": "8",
    "--xla_backend_optimization_level": "0",
    "--xla_llvm_disable_expensive_passes": "true",
    "--xla_cpu_use_fusion_emitters": "false",  # compiles a third faster
}
_given = os.environ.get("XLA_FLAGS", "")
_added = [f"{name}={value}" for name, value in _FLAGS.items() if name not in _given]
os.environ["XLA_FLAGS"] = " ".join([_given, *_added]).strip()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads and fork do not go together
# A second run of the tests takes its compiled programs from here.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentropy" / "jax_tests"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import pytest
from jaxtyping import install_import_hook

ROOT = Path(__file__).parents[1]
_CHECKED = ("rl/credit", "rl/objective", "model")
# jax rebuilds these with other leaves (vmap, scan, eval_shape), so their fields cannot be checked.
_PYTREES = ("struct.dataclass", "PyTreeNode", "register_dataclass", "register_pytree_node")


def _checked_modules() -> list[str]:
    files = (file for folder in _CHECKED for file in (ROOT / folder).rglob("*.py"))
    # The hook takes a package's name for everything below it, so only modules are named.
    modules = (file for file in files if file.name != "__init__.py")
    modules = (file for file in modules if not any(word in file.read_text() for word in _PYTREES))
    return sorted(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in modules)


install_import_hook(_checked_modules(), "beartype.beartype")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public data that some tests read: AGENTROPY_DATA, or ../shared/data beside the project."""
    path = Path(os.environ.get("AGENTROPY_DATA") or ROOT.parent / "shared" / "data")
    if not path.is_dir():
        pytest.skip(f"no public data at {path}; set AGENTROPY_DATA")
    return path
