"""The worker process by itself: malformed requests, stray prints, what it inherits, how it ends."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest

from envs import processes, server
from envs.protocol import VERSION

FAKE = "tests.envs.fakes:FakeEnvironment"


class Client:
    """Speaks to a worker over its pipes, one line at a time."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "envs.server", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=processes.environment(os.environ),
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout

    def raw(self, data: bytes, replies: int) -> list[dict]:
        self._in.write(data)
        self._in.flush()
        return [json.loads(self._out.readline()) for _ in range(replies)]

    def ask(self, *ops: dict) -> list[dict]:
        return self.raw(json.dumps({"ops": ops}).encode() + b"\n", len(ops))

    def open(self, slots: int = 2, **config: object) -> dict:
        (reply,) = self.ask(
            {"id": 0, "op": "open", "version": VERSION, "env": FAKE, "config": config, "slots": slots}
        )
        return reply

    def close(self) -> tuple[bytes, bytes]:
        out, errors = self.process.communicate(timeout=10)
        return out, errors


@pytest.fixture
def client():
    client = Client()
    yield client
    processes.end([client.process], patience_s=0)
    client.process.communicate()


MALFORMED_LINES = [
    b"{",
    b"null",
    b"[]",
    b"7",
    b'"ops"',
    b"\xff\xfe\x00",
    b"\x00" * 100,
    b"[" * 100_000,
    b'{"ops": ' + b'{"a":' * 50_000,
    b'{"ops": NaN}',
    b'{"ops": Infinity}',
    b'{"ops": null}',
    b'{"ops": {}}',
    b'{"ops": "step"}',
    b'{"ops": ' + b"9" * 10_000 + b"}",
    b"{}",
    b'{"id": 1, "op": "step", "slot": 0, "response": "x"}',  # not in a batch
    b"GET / HTTP/1.1\r",
    b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix",  # a pickle
]

MALFORMED_OPS = [
    None,
    3,
    "step",
    [],
    {},
    {"op": None},
    {"op": 5},
    {"op": "fly"},
    {"op": "__class__"},
    {"op": "x" * 10_000},
    {"op": "step"},
    {"op": "step", "slot": 0},
    {"op": "step", "slot": 0, "response": 3},
    {"op": "step", "slot": 0, "response": None},
    {"op": "step", "slot": 0, "response": ["a"]},
    {"op": "step", "slot": 1, "response": "before any reset"},
    {"op": "step", "slot": 2, "response": "out of range"},
    {"op": "step", "slot": -1, "response": "a"},
    {"op": "step", "slot": True, "response": "a"},
    {"op": "step", "slot": 0.0, "response": "a"},
    {"op": "step", "slot": "0", "response": "a"},
    {"op": "step", "slot": 10**30, "response": "a"},
    {"op": "reset", "slot": 0},
    {"op": "reset", "slot": 0, "task": 1, "seed": 1},
    {"op": "reset", "slot": 0, "task": "train-0", "seed": "1"},
    {"op": "reset", "slot": 0, "task": "train-0", "seed": 1.5},
    {"op": "reset", "slot": 9, "task": "train-0", "seed": 1},
    {"op": "demonstrate", "slot": 0, "task": None, "seed": 1},
    {"op": "tasks"},
    {"op": "tasks", "split": 4},
    {"op": "tasks", "split": "no such split"},
    {"op": "open"},
    {"op": "open", "version": VERSION, "env": FAKE, "config": [], "slots": 1},
    {"op": "open", "version": VERSION, "env": FAKE, "config": {}, "slots": 0},
    {"op": "open", "version": VERSION, "env": FAKE, "config": {}, "slots": 10**9},
    {"op": "open", "version": VERSION + 1, "env": FAKE, "config": {}, "slots": 1},
    {"op": "open", "version": VERSION, "env": "nothing", "config": {}, "slots": 1},
    {"op": "open", "version": VERSION, "env": "no.such.module:Thing", "config": {}, "slots": 1},
    {"op": "open", "version": VERSION, "env": "os:system", "config": {}, "slots": 1},
    {"op": "open", "version": VERSION, "env": "tests.envs.fakes:NotAnEnvironment", "config": {}, "slots": 1},
    {"op": "open", "version": VERSION, "env": FAKE, "config": {"colour": 1}, "slots": 1},
]


def test_malformed_requests_get_error_replies_and_the_server_lives_on(client: Client) -> None:
    assert client.open()["kind"] == "open"
    client.ask({"id": 1, "op": "reset", "slot": 0, "task": "train-0", "seed": 5})
    for line in MALFORMED_LINES:
        (reply,) = client.raw(line + b"\n", 1)
        assert reply["kind"] == "failed", line[:60]
        assert reply["error"]
    for number, op in enumerate(MALFORMED_OPS):
        (reply,) = client.ask({**op, "id": number} if isinstance(op, dict) else op)
        assert reply["kind"] == "failed", op
        assert reply["id"] == (number if isinstance(op, dict) else None)
    # The episode that ran before all that still runs.
    (reply,) = client.ask({"id": 7, "op": "step", "slot": 0, "response": "a"})
    assert reply["value"]["observation"]["prompts"] == ["train-0 5 1"]
    assert client.close()[0] == b""


def test_random_bytes_get_error_replies(client: Client) -> None:
    source = random.Random(0)
    good = json.dumps({"ops": [{"id": 1, "op": "reset", "slot": 0, "task": "train-0", "seed": 1}]}).encode()
    for _ in range(200):
        line = bytearray(good)
        for _ in range(source.randrange(1, 8)):
            line[source.randrange(len(line))] = source.randrange(256)
        assert (
            client.raw(bytes(line).replace(b"\n", b" ").strip() + b"\n", 1)[0]["kind"] == "failed"
        )  # nothing is open
    assert client.open()["kind"] == "open"


def test_oversize_lines_are_refused_without_being_kept() -> None:
    lines = server.Lines()
    chunk = b"x" * (1 << 20)
    for _ in range(server.MAX_LINE // len(chunk) + 3):
        assert lines.feed(chunk) == []
    assert lines.feed(b"tail\nshort\nhal") == [None, b"short"]
    assert lines.feed(b"f\n") == [b"half"]


def test_oversize_line_over_the_wire(client: Client) -> None:
    replies = client.raw(b" " * (server.MAX_LINE + 1) + b"\n{\n", 2)
    assert "exceeds" in replies[0]["error"]
    assert "not JSON" in replies[1]["error"]


@pytest.mark.parametrize("response", ["raise", "exit", "nan"])
def test_an_exception_is_a_failed_reply_of_its_slot_alone(client: Client, response: str) -> None:
    client.open()
    client.ask(*({"id": slot, "op": "reset", "slot": slot, "task": "train-1", "seed": 3} for slot in (0, 1)))
    failed, other = client.ask(
        {"id": 1, "op": "step", "slot": 0, "response": response},
        {"id": 2, "op": "step", "slot": 1, "response": "a"},
    )
    assert failed["kind"] == "failed"
    assert "value" not in failed  # no reward, not even 0
    assert other["value"]["observation"]["prompts"] == ["train-1 3 1"]
    (after,) = client.ask({"id": 3, "op": "step", "slot": 0, "response": "a"})
    assert "no running episode" in after["error"]
    (again,) = client.ask({"id": 4, "op": "reset", "slot": 0, "task": "train-2", "seed": 3})
    assert again["value"]["prompts"] == ["train-2 3 0"]


def test_an_episode_is_over_when_it_is_done(client: Client) -> None:
    client.open()
    client.ask({"id": 1, "op": "reset", "slot": 0, "task": "train-1", "seed": 3})
    won, after = client.ask(*({"id": i, "op": "step", "slot": 0, "response": "win"} for i in (2, 3)))
    assert won["value"]["success"]
    assert won["value"]["observation"] is None
    assert after["kind"] == "failed"


def test_stray_prints_do_not_reach_the_wire(client: Client) -> None:
    client.open()
    client.ask({"id": 1, "op": "reset", "slot": 0, "task": "train-0", "seed": 1})
    (reply,) = client.ask({"id": 2, "op": "step", "slot": 0, "response": "print"})
    assert reply["value"]["action"] == "print"
    out, errors = client.close()
    assert out == b""
    for text in (b"a stray print at reset", b"not json", b"raw bytes on descriptor 1", b"from a child"):
        assert text in errors


def test_the_environment_variables_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENTROPY_ENV_TOKEN", "WANDB_API_KEY", "HTTPS_PROXY", "LD_PRELOAD", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "secret")
    kept = processes.environment(os.environ)
    assert "secret" not in kept.values()
    assert kept["PYTHONPATH"] == str(processes.ROOT)


def test_only_served_environments_may_be_opened() -> None:
    client = Client("--serve", "alfworld")
    assert "not served" in client.open()["error"]
    client.close()


def test_the_worker_ends_with_its_input(client: Client) -> None:
    client.open()
    client.close()
    assert client.process.returncode == 0


def test_a_busy_worker_ends_with_its_input(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.open()
    client.ask({"id": 1, "op": "reset", "slot": 0, "task": "train-0", "seed": 1})
    client.raw(b'{"ops": [{"id": 2, "op": "step", "slot": 0, "response": "sleep 60"}]}\n', 0)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < server.GRACE_S + 3
