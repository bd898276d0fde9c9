"""One connection to a server: a child process's pipes or a socket, non-blocking, carrying lines."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Sequence

from envs import listener, processes
from envs.protocol import VERSION

MAX_REPLY = 256 << 20  # bytes of one reply line
_PIPE = 1 << 20  # bytes a pipe should hold, so that workers seldom wait for a busy trainer
_TAIL = 4000  # bytes of a worker's standard error kept for error messages


class WireError(OSError):
    """The other side is gone, late, or does not speak the protocol."""


class Wire:
    """Ends at the first WireError; nothing is retried here."""

    def __init__(
        self, *, source: int, sink: int, errors: int = -1, process: subprocess.Popen[bytes] | None = None
    ):
        self.source, self.sink, self.errors, self.process = source, sink, errors, process
        self.received = 0  # bytes
        self._connection: socket.socket | None = None
        self._unsent = bytearray()
        self._parts: list[bytes] = []  # of a line that is not complete
        self._size = 0
        self._ended = False
        self._tail = b""
        for descriptor in (source, sink, errors):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)

    @classmethod
    def spawn(cls, interpreter: str | None) -> Wire:
        """Starts a worker process."""
        there_in, sink = os.pipe()
        source, there_out = os.pipe()
        errors, there_errors = os.pipe()
        try:
            for pipe in (sink, source):
                _widen(pipe)
            process = processes.start(
                [], stdin=there_in, stdout=there_out, stderr=there_errors, interpreter=interpreter
            )
        except BaseException:
            for descriptor in (sink, source, errors):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (there_in, there_out, there_errors):
                os.close(descriptor)
        return cls(source=source, sink=sink, errors=errors, process=process)

    @classmethod
    def connect(cls, address: str, *, token: str, patience_s: float) -> Wire:
        """Connects to a listening server and authenticates; raises WireError with the server's reason."""
        host, port = listener.split_address(address)
        connection = socket.create_connection((host, port), timeout=patience_s)
        try:
            listener.keep_alive(connection)
            connection.sendall(json.dumps({"version": VERSION, "token": token}).encode() + b"\n")
            answer = b""
            until = time.monotonic() + patience_s
            while not answer.endswith(b"\n"):
                if len(answer) > 4096 or time.monotonic() > until or not (byte := connection.recv(1)):
                    raise WireError(f"{address} did not answer the greeting")
                answer += byte
            reply = json.loads(answer)
            if not isinstance(reply, dict) or reply.get("ok") is not True:
                raise WireError(
                    f"{address} refused: {reply.get('error') if isinstance(reply, dict) else reply}"
                )
        except BaseException:
            connection.close()
            raise
        wire = cls(source=connection.fileno(), sink=connection.fileno())
        wire._connection = connection
        return wire

    def register(self, poller: select.poll) -> None:
        """Adds what this wire waits for."""
        writing = select.POLLOUT if self._unsent else 0
        if self.source == self.sink:
            poller.register(self.source, select.POLLIN | writing)
            return
        poller.register(self.source, select.POLLIN)
        if writing:
            poller.register(self.sink, writing)
        if self.errors >= 0:
            poller.register(self.errors, select.POLLIN)

    def push(self, line: bytes) -> None:
        """Sends now what fits and the rest in later exchanges."""
        self._unsent += line
        self._send()

    def exchange(self) -> list[bytes]:
        """Sends and reads without waiting. Returns complete lines; raises WireError at the end of input."""
        self._send()
        self._hear()
        lines: list[bytes] = []
        while not self._ended:
            try:
                data = os.read(self.source, _PIPE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._ended = True
                break
            self.received += len(data)
            first, *rest = data.split(b"\n")
            self._parts.append(first)
            self._size += len(first)
            if self._size > MAX_REPLY:
                raise WireError(f"a reply exceeds {MAX_REPLY} bytes")
            if rest:
                lines.append(b"".join(self._parts))
                lines.extend(rest[:-1])
                self._parts, self._size = [rest[-1]], len(rest[-1])
        if self._ended and not lines:
            raise WireError("the connection ended")
        return lines

    def epitaph(self) -> str:
        """After `close_all`: how the process ended and the last it wrote to standard error, for an error message."""
        if self.process is None:
            return ""
        text = self._tail.decode(errors="replace").strip()
        return f"; exit status {self.process.returncode}" + (
            f"; standard error ends:\n{text}" if text else ""
        )

    @staticmethod
    def close_all(wires: Sequence[Wire], *, patience_s: float) -> None:
        """Closes wires; ends and reaps their processes, the polite way for up to `patience_s` in all."""
        for wire in wires:
            wire._hear()
            if wire._connection is not None:
                wire._connection.close()  # the server's worker sees the end of its input
            else:
                os.close(wire.sink)
        processes.end([wire.process for wire in wires if wire.process is not None], patience_s=patience_s)
        for wire in wires:
            wire._hear()
            if wire._connection is None:
                os.close(wire.source)
            if wire.errors >= 0:
                os.close(wire.errors)
                wire.errors = -1

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = os.write(self.sink, self._unsent)
            except BlockingIOError:
                return
            except OSError:  # reading will show the same end, after the replies that are still to be had
                self._unsent.clear()
                return
            del self._unsent[:sent]

    def _hear(self) -> None:
        """Takes what was written to standard error, so that a chatty worker never blocks, and keeps the end of it."""
        while self.errors >= 0:
            try:
                data = os.read(self.errors, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                os.close(self.errors)
                self.errors = -1
                return
            self._tail = (self._tail + data)[-_TAIL:]


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE)
    except OSError:
        pass  # over the user's quota, or not Linux
