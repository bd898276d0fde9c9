"""The pool: independent slots, deadlines, dead workers, budgets, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs import processes
from envs.pool import EnvPool, EnvPoolError
from envs.protocol import Event

FAKE = "tests.envs.fakes:FakeEnvironment"


def make(**changes: Any) -> EnvPool:
    values: dict[str, Any] = {"workers": 2, "slots": 4, "deadline_s": 10.0, "restarts": 2, "config": {}}
    return EnvPool(name=FAKE, **values | changes)


def collect(pool: EnvPool, count: int) -> dict[int, Event]:
    events: list[Event] = []
    until = time.monotonic() + 15
    while len(events) < count and time.monotonic() < until:
        events += pool.poll(1.0)
    assert len(events) == count, events
    return {event.slot: event for event in events}


def reset_all(pool: EnvPool) -> dict[int, Event]:
    for slot in range(pool.slots):
        pool.reset(slot, f"train-{slot}", seed=slot + 10)
    return collect(pool, pool.slots)


def pids(pool: EnvPool) -> list[int]:
    return [worker.wire.process.pid for worker in pool._workers if worker.wire and worker.wire.process]


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has, once its last thread has let go of the pipes)."""
    try:
        if len(list(Path(f"/proc/{pid}/task").iterdir())) > 1:
            return False
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def eventually(condition: Callable[[], bool], seconds: float = 8.0) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_episodes_from_reset_to_the_end() -> None:
    with make(config={"limit": 2}) as pool:
        assert pool.tasks("train") == ["train-0", "train-1", "train-2", "train-3"]
        assert {
            slot: event.observation.prompts for slot, event in reset_all(pool).items() if event.observation
        } == {slot: (f"train-{slot} {slot + 10} 0",) for slot in range(4)}
        for slot, response in enumerate(["win", "a", "", "a"]):
            pool.step(slot, response)
        results = {slot: event.result for slot, event in collect(pool, 4).items()}
        assert results[0] is not None
        assert (results[0].success, results[0].reward, results[0].stop) == (True, 1.0, "success")
        assert results[2] is not None
        assert (results[2].valid, results[2].penalty, results[2].done) == (False, -0.1, False)
        pool.step(1, "a")
        last = collect(pool, 1)[1].result
        assert last is not None
        assert (last.done, last.success, last.stop, last.observation) == (True, False, "step_limit", None)
        pool.demonstrate(1, "train-3", 4)
        shown = collect(pool, 1)[1].demonstration
        assert shown is not None
        assert [turn.response for turn in shown.turns] == ["win"]
        assert pool.poll(5.0) == []  # nothing is owed: no waiting
        running = pids(pool)
    assert all(gone(pid) for pid in running)


def test_a_slow_slot_holds_up_only_its_worker() -> None:
    with make() as pool:
        reset_all(pool)
        pool.step(1, "sleep 1.5")  # worker 1
        pool.step(0, "a")  # worker 0
        pool.step(2, "a")
        started = time.monotonic()
        assert set(collect(pool, 2)) == {0, 2}
        assert time.monotonic() - started < 1.2
        assert set(collect(pool, 1)) == {1}


def test_replies_stream_before_the_batch_is_done() -> None:
    with make(workers=1) as pool:
        reset_all(pool)
        pool.step(0, "sleep 0.2")
        pool.step(1, "sleep 1.5")
        started = time.monotonic()
        assert set(collect(pool, 1)) == {0}
        assert time.monotonic() - started < 1.2


def test_workers_outlive_the_thread_that_made_them_and_forks_do_not_end_them() -> None:
    made: list[EnvPool] = []
    thread = threading.Thread(target=lambda: made.append(make(workers=1)))
    thread.start()
    thread.join()
    with made[0] as pool:
        time.sleep(0.1)  # the kernel tells workers of the end of the thread
        forked = os.fork()
        if forked == 0:
            pool.close()
            os._exit(0)
        os.waitpid(forked, 0)
        assert all(event.kind == "reset" for event in reset_all(pool).values())
        assert pool.restarts_left == 2


def test_misuse_is_an_error_of_the_caller() -> None:
    with make() as pool:
        with pytest.raises(ValueError, match="slot=4"):
            pool.reset(4, "train-0", 1)
        pool.reset(0, "train-0", 1)
        with pytest.raises(ValueError, match="still owes"):
            pool.step(0, "a")
        with pytest.raises(EnvPoolError, match="unknown split"):
            pool.tasks("test")
        collect(pool, 1)
    with pytest.raises(EnvPoolError, match="closed"):
        pool.reset(0, "train-0", 1)


def test_an_exception_fails_one_slot_and_keeps_the_worker() -> None:
    with make(workers=1) as pool:
        reset_all(pool)
        before = pids(pool)
        pool.step(0, "raise")
        pool.step(1, "nan")
        pool.step(2, "a")
        pool.reset(3, "bad", 1)
        events = collect(pool, 4)
        assert {slot: event.kind for slot, event in events.items()} == {
            0: "failed",
            1: "failed",
            2: "step",
            3: "failed",
        }
        assert "boom" in events[0].error
        assert events[0].result is None
        assert pids(pool) == before
        assert pool.restarts_left == 2


def test_a_late_worker_is_replaced() -> None:
    with make(deadline_s=1.0) as pool:
        reset_all(pool)
        before = pids(pool)
        pool.step(1, "sleep 60")
        pool.step(0, "a")
        started = time.monotonic()
        events = collect(pool, 2)
        assert time.monotonic() - started < 4
        assert events[0].kind == "step"
        assert events[1].kind == "failed"
        assert "no answer within 1 s" in events[1].error
        assert gone(before[1])
        # Slot 3 sat idle on the dead worker: its episode is lost; slot 1 was told already. Both can start anew.
        pool.step(3, "a")
        pool.step(2, "a")
        events = collect(pool, 2)
        assert (events[3].kind, events[2].kind) == ("failed", "step")
        for slot in (1, 3):
            pool.reset(slot, "train-0", 5)
        assert all(event.kind == "reset" for event in collect(pool, 2).values())
        assert pool.restarts_left == 1


def test_the_deadline_is_that_of_one_request() -> None:
    with make(workers=1, deadline_s=1.2) as pool:
        reset_all(pool)
        for slot in range(4):
            pool.step(slot, "sleep 0.4")  # 1.6 s in all
        assert all(event.kind == "step" for event in collect(pool, 4).values())


def test_a_caller_that_was_away_does_not_fail_answers_that_are_there() -> None:
    with make(workers=1, deadline_s=0.8) as pool:
        reset_all(pool)
        pool.step(0, "a")
        pool.flush()
        time.sleep(1.1)
        assert collect(pool, 1)[0].kind == "step"


def test_a_chatty_worker_does_not_block() -> None:
    with make() as pool:
        reset_all(pool)
        pool.step(0, "chatty")
        assert collect(pool, 1)[0].kind == "step"


def test_a_crash_fails_its_worker_and_tells_the_status() -> None:
    with make(workers=1) as pool:
        reset_all(pool)
        pool.step(0, "a")
        pool.step(1, "crash")
        pool.step(2, "a")
        events = collect(pool, 3)
        assert events[0].kind in ("step", "failed")  # its answer may have been on its way
        assert (events[1].kind, events[2].kind) == ("failed", "failed")
        assert "exit status 9" in events[1].error
        pool.step(3, "a")
        assert collect(pool, 1)[3].kind == "failed"
        assert all(event.kind == "reset" for event in reset_all(pool).values())


def test_a_worker_killed_while_idle_costs_no_new_episode() -> None:
    with make(workers=1) as pool:
        reset_all(pool)
        os.kill(pids(pool)[0], signal.SIGKILL)
        assert eventually(lambda: gone(pids(pool)[0]))
        pool.reset(0, "train-0", 1)
        pool.step(1, "a")
        events = collect(pool, 2)
        assert (events[0].kind, events[1].kind) == ("reset", "failed")


def test_a_spent_budget_is_an_exception() -> None:
    with make(workers=1, restarts=1) as pool:
        for _ in range(2):
            reset_all(pool)
            pool.step(0, "crash")
            if pool.restarts_left:
                collect(pool, 1)
        with pytest.raises(EnvPoolError, match=r"no restarts left.*exit status 9"):
            pool.poll(5.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"colour": 1}}, "unknown config keys"),
        ({"config": {"open": "die"}}, "last words"),
        ({"interpreter": "/no/such/python"}, "cannot be started"),
        ({"interpreter": "/bin/false"}, "exit status 1"),
    ],
)
def test_what_cannot_be_opened_is_an_exception(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvPoolError, match=message):
        make(**changes)


def test_bad_arguments() -> None:
    for changes in (
        {"workers": 0},
        {"slots": 0},
        {"deadline_s": 0.0},
        {"restarts": -1},
        {"address": ["a:1"] * 3},
    ):
        with pytest.raises(ValueError):
            make(**changes)


def test_the_children_of_a_killed_worker_end_with_it(tmp_path: Path) -> None:
    with make(deadline_s=1.0) as pool:
        reset_all(pool)
        pool.step(0, f"spawn {tmp_path / 'a'}")
        pool.step(1, f"spawn {tmp_path / 'b'}")
        collect(pool, 2)
        pool.step(0, "sleep 60")  # killed at the deadline
        collect(pool, 1)
        children = [int(pid) for name in "ab" for pid in (tmp_path / name).read_text().split()]
        assert eventually(lambda: all(gone(pid) for pid in children[:2]))
    assert eventually(lambda: all(gone(pid) for pid in children[2:]))  # closed the polite way


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_orphan_after_the_trainer_is_killed(tmp_path: Path, number: int) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(
        textwrap.dedent(f"""
      import time
      from envs.pool import EnvPool
      pool = EnvPool(name={FAKE!r}, config={{}}, workers=2, slots=2, deadline_s=60, restarts=0)
      for slot in (0, 1):
        pool.reset(slot, "train-0", 1)
      while pool.poll(0.1): pass
      while pool._busy: pool.poll(0.1)
      pool.step(0, {f"spawn {tmp_path / 'a'}"!r})
      while not pool.poll(0.1): pass
      pool.step(1, "sleep 60")  # one worker is busy, one idle
      pool.flush()
      print(*(worker.wire.process.pid for worker in pool._workers), flush=True)
      time.sleep(60)
    """)
    )
    process = subprocess.Popen(
        [sys.executable, str(trainer)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(processes.ROOT)},
        text=True,
    )
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    child = int((tmp_path / "a").read_text().split()[1])
    assert not any(gone(pid) for pid in [*workers, child])
    process.send_signal(number)
    process.wait(timeout=10)
    process.stdout.close()
    assert eventually(lambda: all(gone(pid) for pid in [*workers, child]))
