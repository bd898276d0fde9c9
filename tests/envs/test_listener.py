"""Environments over TCP: who may come in, and that what comes in cannot hurt."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from envs import listener, processes
from envs.pool import EnvPool, EnvPoolError
from envs.protocol import VERSION

FAKE = "tests.envs.fakes:FakeEnvironment"


def serve(*arguments: str, token: str = "") -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "envs.server", "--listen", "127.0.0.1:0", "--serve", FAKE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=processes.environment(os.environ) | {"AGENTROPY_ENV_TOKEN": token},
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["listening"]


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    process, address = serve("--patience", "0.5", token="s3cret")
    yield address
    stop(process)


def pool(address: str, token: str | None = "s3cret", name: str = FAKE) -> EnvPool:
    return EnvPool(
        name=name, config={}, workers=1, slots=2, deadline_s=5.0, restarts=1, address=[address], token=token
    )


def converse(address: str, data: bytes) -> bytes:
    """What the server says to `data` until it hangs up."""
    with socket.create_connection(listener.split_address(address), timeout=5) as connection:
        connection.sendall(data)
        said = b""
        try:
            while more := connection.recv(4096):
                said += more
        except ConnectionResetError:
            pass
        return said


def play(pool: EnvPool, slot: int, seed: int) -> str:
    pool.reset(slot, "train-0", seed)
    (event,) = pool.poll(5.0)
    assert event.observation is not None, event.error
    return event.observation.prompts[0]


def test_two_clients_at_once_and_a_crash_of_one(address: str) -> None:
    with pool(address) as one, pool(address) as two:
        assert one.tasks("train") == two.tasks("train")
        assert play(one, 0, 1) == "train-0 1 0"
        assert play(two, 0, 2) == "train-0 2 0"
        one.step(0, "crash")
        (event,) = one.poll(5.0)
        assert event.kind == "failed"
        two.step(0, "a")
        (event,) = two.poll(5.0)
        assert event.result is not None
        assert play(one, 0, 3) == "train-0 3 0"  # reconnected
        assert one.restarts_left == 0


def test_a_late_remote_worker_is_left_and_replaced(address: str) -> None:
    with EnvPool(
        name=FAKE,
        config={},
        workers=1,
        slots=2,
        deadline_s=0.7,
        restarts=1,
        address=[address],
        token="s3cret",
    ) as late:
        pid = _pid(late)
        late.step(0, "sleep 60")
        (event,) = late.poll(5.0)
        assert event.kind == "failed"
        assert play(late, 0, 2) == "train-0 2 0"
        assert _dies(pid)


@pytest.mark.parametrize("token", ["", "s3cre", "s3cret ", "S3CRET", "\udcff"])
def test_a_wrong_token_is_refused(address: str, token: str) -> None:
    with pytest.raises(EnvPoolError, match="wrong token"):
        pool(address, token=token)


def test_no_op_is_played_before_the_token(address: str) -> None:
    op = {"id": 1, "op": "open", "version": VERSION, "env": FAKE, "config": {}, "slots": 1}
    said = converse(address, json.dumps({"ops": [op]}).encode() + b"\n")
    assert b"malformed greeting" in said
    assert b"open" not in said


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\n", b"malformed greeting"),
        (b"null\n", b"malformed greeting"),
        (b"\xff\xff\n", b"malformed greeting"),
        (b'{"version": 1, "token": 5}\n', b"malformed greeting"),
        (b'{"version": "1", "token": "s3cret"}\n', b"malformed greeting"),
        (b'{"version": 99, "token": "s3cret"}\n', b"version=99"),
        (b"GET / HTTP/1.0\r\n\r\n", b"malformed greeting"),
        (b"[" * 4000 + b"\n", b"malformed greeting"),
        (b"x" * 5000, b"too long"),
        (b'{"version": 1, ', b"no valid greeting in time"),
        (b"", b"no valid greeting in time"),
    ],
)
def test_bad_greetings(address: str, data: bytes, answer: bytes) -> None:
    started = time.monotonic()
    assert answer in converse(address, data)
    assert time.monotonic() - started < 3


def test_only_what_is_served_may_be_opened(address: str) -> None:
    with pytest.raises(EnvPoolError, match="not served here"):
        pool(address, name="alfworld")


def test_the_number_of_clients_is_bounded_and_no_worker_outlives_the_server() -> None:
    process, address = serve("--clients", "1")
    with pool(address, token=None) as one:
        pid = _pid(one)
        with pytest.raises(EnvPoolError, match="1 clients are served already"):
            pool(address, token=None)
        process.kill()
        process.wait(timeout=10)
        assert process.stdout is not None
        process.stdout.close()
        assert _dies(pid)


def _pid(pool: EnvPool) -> int:
    pool.reset(0, "train-0", 1)
    (event,) = pool.poll(5.0)
    assert event.observation is not None
    return event.observation.info["pid"]


def _dies(pid: int) -> bool:
    until = time.monotonic() + 8
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_other_machines_need_a_token(address: str) -> None:
    with pytest.raises(ValueError, match="token"):
        listener.listen(address, token="", names=(), clients=1, patience_s=1.0)


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:http", "host:70000"])
def test_bad_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        listener.split_address(address)
