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

import slotline as sl
from examples.tiny_engine import messages
from examples.tiny_engine.engine import load_model
from examples.tiny_engine.messages import Frame, SplitError
from examples.tiny_engine.options import Options
from examples.tiny_engine.split import PrefillSide, Split

HOST = "127.0.0.1"
TIMEOUT = 60.0
"""Seconds that the decode side waits for an answer, or for the prefill process to start."""


class SocketLink:
    """Frames over a connected socket. Neither side ever blocks while it sends, so they cannot wait for each other.

    What the other side said before it went is received before the ``SplitError`` that says so.

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
        self._gone: OSError | None = None

    @property
    def arrived(self) -> tuple[Frame, ...]:
        """What ``receive`` will give."""
        return tuple(self._arrived)

    @property
    def is_gone(self) -> bool:
        return self._gone is not None

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    def drop(self) -> None:
        """Close without a word."""
        self._socket.close()

    def send(self, frame: Frame) -> None:
        self._unsent += frame.encode()
        self.pump(0)

    def receive(self, wait: bool) -> list[Frame]:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        self.pump(0)
        while not self._arrived:
            if self._gone is not None:
                within = " in the middle of a frame" if self._reader.is_within else ""
                raise SplitError(f"the other side has gone{within}{self._fate()}") from self._gone
            if not wait:
                break
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise SplitError(f"the other side has been silent for {self._timeout:g} s")
            self.pump(left)
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

    def pump(self, seconds: float | None) -> None:
        """Send and receive what can be without waiting longer than ``seconds`` for it."""
        if self._gone is not None:
            return
        readable, writable, _ = select.select([self._socket], [self._socket] if self._unsent else [], [], seconds)
        if writable:
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                pass  # a false alarm of select
            except OSError as error:  # what it said before is still there to be read
                while self._read():
                    pass
                self._gone = self._gone or error
        if readable and self._gone is None:
            self._read()

    def _read(self) -> bool:
        """Whether something came."""
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError as error:
            self._gone = error
            return False
        if not data:
            self._gone = ConnectionError("end of the stream")
        self._arrived += self._reader.feed(data)
        return bool(data)

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
    if model is None:
        model = load_model(options.framework)  # what is missing is said here, once, and not by the other process too
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        command = [sys.executable, "-m", "examples.tiny_engine", "--role", "prefill", "--connect", str(port)]
        process = subprocess.Popen(
            command + arguments(options),
            cwd=Path(__file__).parents[2],
            env={"OMP_NUM_THREADS": "1", **os.environ},  # the model is small, and the other side computes too
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for this process, which then sees the other off
        )
        try:
            link = _accept(server, process)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return _decode_side(options, link, model)


def listen(options: Options, port: int, model: Any = None) -> Split:
    """Wait for a prefill process that someone starts, and be its decode side."""
    with socket.create_server((HOST, port)) as server:
        print(f"waiting for: --role prefill --connect {server.getsockname()[1]}", file=sys.stderr, flush=True)
        link = _accept(server, None)
    return _decode_side(options, link, model)


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


def _accept(server: socket.socket, process: subprocess.Popen[bytes] | None) -> SocketLink:
    """The link to the prefill side: the first connection that says PEER. Others may come before it, and are closed.

    With a ``process`` of our own: ``SplitError`` once that has ended, or has not connected in time.
    """
    deadline = time.monotonic() + TIMEOUT
    callers: list[SocketLink] = []
    try:
        while process is None or time.monotonic() < deadline:
            watched: list[socket.socket | SocketLink] = [server, *callers]
            ready = select.select(watched, [], [], 0.1)[0]
            if server in ready:
                callers.append(SocketLink(server.accept()[0], process))
            for caller in [c for c in callers if c in ready]:
                found = _is_peer(caller)
                if found is not None:
                    callers.remove(caller)
                if found:
                    return caller
                if found is False:
                    print("a caller that is no prefill side was closed; waiting on", file=sys.stderr, flush=True)
                    caller.drop()
            if not ready and process is not None and process.poll() is not None:
                raise SplitError(f"the prefill process ended with status {process.returncode} before it connected")
        raise SplitError(f"the prefill process did not connect within {TIMEOUT:g} s")
    finally:
        for caller in callers:
            caller.drop()


def _is_peer(caller: SocketLink) -> bool | None:
    """Whether the first thing that a caller says is who it is; None: it has not said anything yet."""
    try:
        caller.pump(0)
        if not caller.arrived:
            return False if caller.is_gone else None
        sl.Peer.decode(caller.arrived[0].body)
        return caller.arrived[0].kind == messages.PEER
    except (SplitError, sl.PacketError):
        return False


def _decode_side(options: Options, link: SocketLink, model: Any) -> Split:
    try:
        return Split(options, link, model)
    except BaseException:
        link.close()
        raise
