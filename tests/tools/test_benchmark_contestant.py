"""Contestants that are well, die, hang, talk or err: each is answered for, reaped, and stops nobody else."""

from __future__ import annotations

import io
import json
import os
import time

import pytest

from tools.benchmarks import serve, turns
from tools.benchmarks.contestant import Contestant, Entry, Lost, environment

FAKE = "tests.tools.fake_contestant"


def entry(name: str, behaviour: str, **options: object) -> Entry:
    return Entry(name, FAKE, options={"behaviour": behaviour, **options})


def opened(behaviour: str) -> Contestant:
    contestant = Contestant(entry("fake", behaviour), threads=1)
    contestant.ask({"op": "open", "spec": {"behaviour": behaviour}}, deadline_s=20)
    return contestant


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def pid(contestant: Contestant) -> int:
    assert contestant._process
    return contestant._process.pid


def test_runs_and_is_reaped() -> None:
    with opened("talks") as contestant:
        reply = contestant.ask({"op": "run"}, deadline_s=20)
        number = pid(contestant)
    assert reply["result"] == {"tokens": 3} and reply["seconds"] > 0 and reply["compile_seconds"] == 0
    assert gone(number) and contestant.peak_bytes > 1e6


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("dies", "died: .*out of memory"),
        ("hangs", "no answer within 0.3 s"),
        ("errs", "RuntimeError: the loss is NaN"),
    ],
)
def test_lost(behaviour: str, reason: str) -> None:
    contestant = opened(behaviour)
    number, started = pid(contestant), time.monotonic()
    with pytest.raises(Lost, match=f"(?s){reason}"):
        contestant.ask({"op": "run"}, deadline_s=0.3 if behaviour == "hangs" else 20)
    assert gone(number) and time.monotonic() - started < 10
    contestant.close()


def test_others_go_on() -> None:
    told: list[str] = []
    entries = [
        entry("well", "fine"),
        entry("mortal", "dies", after=2),
        entry("picky", "refuses"),
        Entry("absent", FAKE, python="/nowhere/python"),
    ]
    found = turns.measure(entries, {}, threads=1, repeats=3, warmups=1, deadline_s=20, tell=told.append)
    well, mortal, picky, absent = found
    assert len(well.seconds) == len(well.cpu_seconds) == len(well.compiled) == 3 and not well.lost
    assert well.result == well.first == {"tokens": 3} and well.peak_bytes > 1e6
    assert len(mortal.seconds) == 1 and "died" in mortal.lost
    assert picky.lost == "ValueError: no such work" and absent.lost.startswith("cannot be started")
    assert told.index("well: round 1 of 3") > told.index(
        "mortal: round 1 of 3"
    )  # backwards after the warm-up
    assert told.index("well: round 2 of 3") < told.index("mortal: round 2 of 3")


def test_requests_out_of_order_end_the_process() -> None:
    replies = io.StringIO()
    with pytest.raises(ValueError, match="unexpected request"):
        serve.serve(FAKE, io.StringIO('{"op": "run"}\n'), replies)
    assert json.loads(replies.getvalue())["error"].startswith("ValueError: unexpected request")
    assert serve.serve(FAKE, io.StringIO(""), io.StringIO()) == 0


def test_environment_limits_threads_and_caches_nothing() -> None:
    made = environment({"PATH": "/bin", "JAX_COMPILATION_CACHE_DIR": "x", "OMP_NUM_THREADS": "64"}, threads=2)
    assert made["PATH"] == "/bin" and "JAX_COMPILATION_CACHE_DIR" not in made
    assert made["OMP_NUM_THREADS"] == made["PJRT_NPROC"] == made["MKL_NUM_THREADS"] == "2"
