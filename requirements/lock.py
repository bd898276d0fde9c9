"""Writes train.lock and test.lock: what pip resolves for pyproject.toml, pinned. Called by `make lock`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
# Held back on purpose; everything else is the newest release that fits.
HELD = ["jax==0.10.2", "torch==2.13.0"]
HEADER = """\
# Written by `make lock` from pyproject.toml; do not edit. Python 3.11+, tested on jax 0.10.2.
"""
TORCH = """\
# torch is used by parity tests only, on the CPU. Where pip would take its CUDA build (several GB), name PyTorch's index
# of CPU builds: make test PIP_ARGS="--extra-index-url=<index of CPU wheels>". The CPU build satisfies the same pin.
"""


def resolve(requirements: list[str], constraints: list[str], extra: list[str]) -> list[str]:
    """Returns the pins of everything that pip would install for these requirements."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "constraints.txt").write_text("\n".join(constraints))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += [
            "--report",
            f"{folder}/report.json",
            "-c",
            f"{folder}/constraints.txt",
            *extra,
            *requirements,
        ]
        subprocess.run(command, check=True)
        report = json.loads(Path(folder, "report.json").read_text())
    packages = (item["metadata"] for item in report["install"])
    # A local label such as +cpu names a build of the same release; the pin must fit the others too.
    return sorted(
        (f"{package['name']}=={package['version'].split('+')[0]}" for package in packages),
        key=lambda pin: re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower(),
    )


def main() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    train, extras, arguments = project["dependencies"], project["optional-dependencies"], sys.argv[1:]
    dev = [line for line in extras["dev"] if not line.startswith("agentropy")]
    pins = resolve(train + extras["test"] + dev, HELD, arguments)
    needed = set(resolve(train, pins, arguments))
    for name, note, lines in (("train", "", [p for p in pins if p in needed]), ("test", TORCH, pins)):
        path = HERE / f"{name}.lock"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(HEADER + note + "\n".join(lines) + "\n")
        os.replace(temporary, path)
        print(f"{path.relative_to(HERE.parent)}: {len(lines)} packages")


if __name__ == "__main__":
    main()
