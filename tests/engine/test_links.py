"""Sockets of the split: the last words of a peer, and strangers on the port."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from examples.tiny_engine import messages, processes
from examples.tiny_engine.messages import Frame, SplitError
from examples.tiny_engine.options import Options
from examples.tiny_engine.plain import greedy
from examples.tiny_engine.processes import SocketLink
from examples.tiny_engine.split import Split, serve
from serving import models

import slotline as sl

SMALL = Options(max_num_seqs=3, max_model_len=152, block_size=8, num_blocks=64)
WORDS = [Frame(messages.FINISHED, b"the last result"), Frame(messages.BLOCK, bytes(100))]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection over the loopback."""
    with socket.create_server((processes.HOST, 0)) as server:
        there = socket.create_connection(server.getsockname())
        here = server.accept()[0]
    with there, here:
        yield here, there


@pytest.mark.parametrize("way", ["closed", "half closed", "reset", "unread"])
def test_last_words_are_received_before_the_error(pair: tuple[socket.socket, socket.socket], way: str) -> None:
    """However the other side goes, and whatever this side still sends."""
    here, there = pair
    link = SocketLink(here, timeout=10)
    if way in ("reset", "unread"):
        link.send(Frame(messages.ABORT, b"never read"))  # closing with it unread resets the connection
    there.sendall(b"".join(frame.encode() for frame in WORDS))
    if way == "half closed":
        there.shutdown(socket.SHUT_WR)
    else:
        there.close()
    if way != "unread":
        for _ in range(3):
            link.send(Frame(messages.REQUEST, bytes(1 << 20)))
    found: list[Frame] = []
    while len(found) < len(WORDS):
        found += link.receive(wait=True)
    assert found == WORDS
    with pytest.raises(SplitError, match="the other side has gone"):
        link.receive(wait=True)
    with pytest.raises(SplitError, match="has gone"):
        link.receive(wait=False)


def test_a_peer_that_goes_within_a_frame_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = pair
    there.sendall(WORDS[0].encode()[:-3])
    there.close()
    with pytest.raises(SplitError, match="gone in the middle of a frame"):
        SocketLink(here, timeout=10).receive(wait=True)


def test_a_difference_is_named_though_the_peer_has_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    """D5: it has refused us first, and ended."""
    here, there = pair
    layout = sl.target_layout(replace(SMALL, role="prefill", block_size=16).batch_config())
    there.sendall(Frame(messages.PEER, sl.Peer.of(layout).encode()).encode())
    there.close()
    split = Split(SMALL, SocketLink(here, timeout=10), models("numpy"))
    split.add("a", b"import ")
    with pytest.raises(sl.LayoutError, match="block_size is 8 here and 16 there"):
        split.run()


def test_strangers_do_not_take_the_peers_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Silent, talking of something else, cut short, gone: whoever is not a peer is closed, and the peer served."""
    with socket.create_server((processes.HOST, 0)) as server:
        port = server.getsockname()[1]
    strangers: list[socket.socket] = []
    other = Frame(messages.FINISHED, b"").encode()

    def callers() -> None:
        said = [b"", b"GET / HTTP/1.0\r\n\r\n", b"\x20\0", other, Frame(messages.PEER, b"xyz").encode()]
        while not strangers:
            try:
                strangers.append(socket.create_connection((processes.HOST, port)))
            except ConnectionRefusedError:
                continue  # not yet
        strangers.extend(socket.create_connection((processes.HOST, port)) for _ in said[1:])
        for stranger, words in zip(strangers, said, strict=True):
            stranger.sendall(words)
        socket.create_connection((processes.HOST, port)).close()
        processes.prefill(SMALL, port)

    thread = threading.Thread(target=callers)
    thread.start()
    try:
        with processes.listen(SMALL, port, models("numpy")) as split:
            results = serve(split, [("a", b"import ")], sl.SamplingParams(max_dec_len=6))
    finally:
        thread.join(60)
    for stranger in strangers:
        stranger.close()
    assert not thread.is_alive()
    assert "no prefill side was closed" in capsys.readouterr().err
    assert results["a"].tokens == greedy(models("numpy"), b"import ", max_tokens=6).tokens


def test_a_process_that_cannot_start_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a stranger has connected in its place."""
    real: Any = subprocess.Popen
    strangers: list[socket.socket] = []

    def popen(command: list[str], **more: object) -> object:
        port = int(command[command.index("--connect") + 1])
        strangers.append(socket.create_connection((processes.HOST, port)))
        return real(["false"], **more)

    monkeypatch.setattr("subprocess.Popen", popen)
    with pytest.raises(SplitError, match="ended with status 1 before it connected"):
        processes.start(SMALL, models("numpy"))
    strangers[0].close()
