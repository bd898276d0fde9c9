"""Environments over TCP: accepts, authenticates, and hands each client to a worker process of its own.

The first line of a connection is `{"version": 1, "token": "..."}`, answered by `{"ok": true}` or an error and the end;
what follows is the protocol of envs/server.py, spoken by a worker whose standard input and output are the socket. A
slow, stuck or crashed client or environment therefore touches nobody else. The wire is plain text: across machines,
tunnel it.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from envs import processes
from envs.protocol import VERSION, ProtocolError, field

MAX_GREETING = 4096  # bytes


def listen(address: str, *, token: str, names: tuple[str, ...], clients: int, patience_s: float) -> None:
    """Serves until SIGTERM or SIGINT. Prints {"listening": "host:port"} first; port 0 takes a free one.

    Raises ValueError for a host that other machines can reach when there is no token.
    """
    host, port = split_address(address)
    family, bound = _resolve(host, port)
    if not token and not ipaddress.ip_address(bound[0].partition("%")[0]).is_loopback:
        raise ValueError(
            f"{address} can be reached from other machines: set a token in the environment variable first"
        )
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(bound)
        server.listen(64)
        server.setblocking(False)
        host, port = server.getsockname()[:2]
        print(json.dumps({"listening": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}), flush=True)
        _Listener(server, token=token, names=names, clients=clients, patience_s=patience_s).run()


def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port" or "[v6]:port"."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ValueError(f"{address=} must be host:port, such as 127.0.0.1:7070")
    return host.removeprefix("[").removesuffix("]"), int(port)


def keep_alive(connection: socket.socket) -> None:
    """Makes the kernel notice within about two minutes that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4), ("TCP_NODELAY", 1)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class _Listener:
    def __init__(
        self, server: socket.socket, *, token: str, names: tuple[str, ...], clients: int, patience_s: float
    ):
        self._server, self._token, self._names = server, token.encode(), names
        self._clients, self._patience_s = clients, patience_s
        self._selector = selectors.DefaultSelector()
        self._greetings: dict[socket.socket, tuple[bytearray, float]] = {}  # received so far, deadline
        self._workers: list[subprocess.Popen[bytes]] = []
        self._running = True

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._selector.register(self._server, selectors.EVENT_READ)
        try:
            while self._running:
                for key, _ in self._selector.select(timeout=0.25):
                    if key.fileobj is self._server:
                        self._accept()
                    else:
                        self._read(key.fileobj)  # type: ignore[arg-type]
                now = time.monotonic()
                for connection in [c for c, (_, until) in self._greetings.items() if until < now]:
                    self._refuse(connection, "no valid greeting in time")
                processes.end([worker for worker in self._workers if processes.ended(worker)], patience_s=0)
                self._workers = [worker for worker in self._workers if worker.returncode is None]
        finally:
            processes.end(self._workers, patience_s=2.0)

    def _stop(self, *_: Any) -> None:
        self._running = False

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._greetings[connection] = (bytearray(), time.monotonic() + self._patience_s)
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._greetings) + len(self._workers) > self._clients:
            self._refuse(connection, f"{self._clients} clients are served already")

    def _read(self, connection: socket.socket) -> None:
        buffer, _ = self._greetings[connection]
        try:
            # Not a byte beyond the first line is taken: the rest is the worker's.
            peeked = connection.recv(MAX_GREETING, socket.MSG_PEEK)
            end = peeked.find(b"\n")
            buffer += connection.recv(end + 1 if end >= 0 else len(peeked)) if peeked else b""
        except BlockingIOError:
            return
        except OSError:
            peeked = b""
        if not peeked:
            self._forget(connection)
        elif b"\n" in buffer:
            self._greet(connection, bytes(buffer))
        elif len(buffer) >= MAX_GREETING:
            self._refuse(connection, "greeting is too long")

    def _greet(self, connection: socket.socket, line: bytes) -> None:
        try:
            greeting = json.loads(line)
            version, token = field(greeting, "version", int), field(greeting, "token", str)
        except (ProtocolError, ValueError, RecursionError):
            return self._refuse(connection, "malformed greeting")
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token) and self._token:
            return self._refuse(connection, "wrong token")
        if version != VERSION:
            return self._refuse(connection, f"{version=} of the protocol is not the server's {VERSION}")
        connection.send(b'{"ok":true}\n')
        self._selector.unregister(connection)
        del self._greetings[connection]
        connection.setblocking(True)
        keep_alive(connection)
        with connection:
            wire = connection.fileno()
            arguments = ["--serve", *self._names]
            try:
                worker = processes.start(arguments, stdin=wire, stdout=wire, stderr=sys.stderr.fileno())
            except OSError as error:  # the machine is full; the client finds its connection closed
                print(f"no worker could be started: {error}", file=sys.stderr)
            else:
                self._workers.append(worker)

    def _refuse(self, connection: socket.socket, reason: str) -> None:
        try:
            connection.send(json.dumps({"error": reason}).encode() + b"\n")
        except OSError:
            pass
        self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._greetings[connection]
        connection.close()


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        family, _, _, _, bound = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ValueError(f"{host=} cannot be listened on: {error}") from error
    return family, bound
