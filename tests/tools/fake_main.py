"""A stand-in for main.py: the same flags, files and way to stop, with numbers that follow from the config.

It writes one row an iteration and reads them back as its checkpoint. While a file `hold` lies beside its run directory
it waits after its first iteration; with `fail` in its config it breaks there.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def main() -> None:
    sys.path.insert(0, str(ROOT))  # it is run as a file
    from configs import arguments
    from tests.tools import fake_config

    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--workdir", type=Path)
    known, rest = parser.parse_known_args()
    config = fake_config.get_config(known.config.partition(":")[2])
    for word in rest:
        match = re.fullmatch(r"--config\.([\w.]+)=(.*)", word)
        assert match, word
        arguments.overlay(config, {match[1]: json.loads(match[2].lower())})
    run(config, arguments.to_json(config), known.workdir)


def run(config: Any, text: str, workdir: Path) -> None:
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(text)
    path = workdir / "metrics.jsonl"
    done = len(path.read_text().splitlines()) if path.exists() else 0
    with (workdir / "starts").open("a") as starts:
        starts.write(f"{done}\n")
    for iteration in range(done, config.train.iterations + 1):
        row = {"iteration": iteration, "time/iteration": time.time()}
        if iteration:
            row["policy/entropy_mean"] = config.level / (iteration + config.seed)
        if iteration in (0, config.train.iterations):
            row |= {"eval/valid_seen_success": (iteration + config.seed) / 8, "eval/valid_seen_n": 8}
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"iteration {iteration}")
        if iteration == 1 and config.fail:
            raise RuntimeError("the learner broke")
        while iteration == 1 and (workdir.parent / "hold").exists() and not stopping:
            time.sleep(0.01)
        if stopping:
            print("stopped")
            return


if __name__ == "__main__":
    main()
