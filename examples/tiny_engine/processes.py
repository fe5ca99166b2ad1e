"""The split over a loopback socket: the decode process listens and starts the prefill process."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from examples.tiny_engine import messages
from examples.tiny_engine.messages import Frame, SplitError
from examples.tiny_engine.options import Options
from examples.tiny_engine.split import PrefillSide, Split

HOST = "127.0.0.1"
TIMEOUT = 60.0
"""Seconds that the decode side waits for an answer, or for the prefill process to start."""


class SocketLink:
    """Frames over a connected socket. Neither side ever blocks while it sends, so they cannot wait for each other.

    ``timeout``: seconds that ``receive`` waits at most; None: until the other side has gone.
    """

    def __init__(
        self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None, timeout: float | None = TIMEOUT
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self.process, self._timeout = connection, process, timeout
        self._reader, self._unsent = messages.Reader(), bytearray()
        self._arrived: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self._unsent += frame.encode()
        self._pump(0)

    def receive(self, wait: bool) -> list[Frame]:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        self._pump(0)
        while wait and not self._arrived:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise SplitError(f"the other side has been silent for {self._timeout:g} s")
            self._pump(left)
        frames, self._arrived = self._arrived, []
        return frames

    def close(self) -> None:
        """Tell the other side that it is over, and see its process off."""
        with contextlib.suppress(OSError):  # it may have gone first
            self._socket.setblocking(True)
            self._socket.settimeout(5)
            self._socket.sendall(bytes(self._unsent) + Frame(messages.END, b"").encode())
        self._socket.close()
        if self.process is not None:
            reap(self.process)

    def _pump(self, seconds: float | None) -> None:
        """Send and receive what can be without waiting longer than ``seconds`` for it."""
        readable, writable, _ = select.select([self._socket], [self._socket] if self._unsent else [], [], seconds)
        try:
            if writable:
                del self._unsent[: self._socket.send(self._unsent)]
            if readable:
                data = self._socket.recv(1 << 20)
                if not data:
                    raise SplitError(f"the other side has gone{self._fate()}")
                self._arrived += self._reader.feed(data)
        except BlockingIOError:
            pass  # a false alarm of select
        except OSError as error:
            raise SplitError(f"the other side has gone{self._fate()}") from error

    def _fate(self) -> str:
        if self.process is None:
            return ""
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return ", though its process still runs"
        return f": its process ended with status {status}"


def start(options: Options, model: Any = None) -> Split:
    """Start a prefill process and be its decode side. Close the result, or use it in ``with``."""
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "examples.tiny_engine", "--role", "prefill", "--connect", str(port)]
        process = subprocess.Popen(
            command + arguments(options),
            cwd=Path(__file__).parents[2],
            env={"OMP_NUM_THREADS": "1", **os.environ},  # the model is small, and the other side computes too
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            connection = _accept(server, process)
            link = SocketLink(connection, process)
        except BaseException:
            reap(process)
            raise
    return _decode_side(options, link, model)


def listen(options: Options, port: int, model: Any = None) -> Split:
    """Wait for a prefill process that someone starts, and be its decode side."""
    with socket.create_server((HOST, port)) as server:
        print(f"waiting for: --role prefill --connect {server.getsockname()[1]}", file=sys.stderr, flush=True)
        connection = server.accept()[0]
    return _decode_side(options, SocketLink(connection), model)


def prefill(options: Options, port: int) -> None:
    """Be the prefill side of the decode process that listens on ``port``, until it says that it is over."""
    try:
        connection = socket.create_connection((HOST, port), timeout=TIMEOUT)
    except OSError as error:
        raise SplitError(f"nobody listens on {HOST}:{port} ({error}); start the decode side first") from error
    with connection:
        link = SocketLink(connection, timeout=None)
        side = PrefillSide(options, link.send)
        while not side.is_ended:
            for frame in link.receive(wait=not side.engine.has_work):
                side.take(frame)
            if side.engine.has_work and not side.is_ended:
                side.step()


def arguments(options: Options) -> list[str]:
    """The command line that gives a process the same options, but for the role."""
    found = []
    for name, value in vars(options).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif name != "role" and value is not None:
            found += [f"--{flag}", str(value)]
    return found


def reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that should end by itself, and end it if it does not."""
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _accept(server: socket.socket, process: subprocess.Popen[bytes]) -> socket.socket:
    server.settimeout(0.1)
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            return server.accept()[0]
        if process.poll() is not None:
            raise SplitError(f"the prefill process ended with status {process.returncode} before it connected")
    raise SplitError(f"the prefill process did not connect within {TIMEOUT:g} s")


def _decode_side(options: Options, link: SocketLink, model: Any) -> Split:
    try:
        return Split(options, link, model)
    except BaseException:
        link.close()
        raise
