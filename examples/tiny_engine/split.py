"""Prefill and decode as two engines. What passes between them is bytes, whether they are one process or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any, Protocol

import slotline as sl
from examples.tiny_engine import messages
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.messages import Frame, SplitError
from examples.tiny_engine.options import Options
from examples.tiny_engine.results import Counts, Handed, Result
from examples.tiny_engine.scheduler import Sequence


class Link(Protocol):
    """The way to the other side."""

    def send(self, frame: Frame) -> None: ...

    def receive(self, wait: bool) -> list[Frame]:
        """The frames that have arrived; ``wait``: at least one."""
        ...

    def close(self) -> None: ...


class PrefillSide:
    """Prefills what it is sent, and hands it over with the blocks of the KV cache."""

    def __init__(self, options: Options, send: Callable[[Frame], None], model: Any = None) -> None:
        self.engine = Engine(replace(options, role="prefill"), model)
        self.is_ended = False
        self._send = send
        self._index: dict[str, int] = {}
        send(Frame(messages.PEER, sl.Peer.of(self.engine.batch.layout).encode()))

    def take(self, frame: Frame) -> None:
        if frame.kind == messages.PEER:
            sl.check_peer(self.engine.batch.layout, frame.body)
        elif frame.kind == messages.REQUEST:
            m = messages.unpack(frame, messages.RequestMessage)
            self.engine.add(m.request_id, m.prompt, m.sampling(), outputs=m.outputs, index=m.index)
            self._index[m.request_id] = m.index
        elif frame.kind == messages.ABORT:
            self.engine.abort(messages.text(frame))
        elif frame.kind == messages.END:
            self.is_ended = True
        else:
            messages.unexpected(frame)

    def step(self) -> None:
        for r in self.engine.step():
            message = messages.FinishedMessage(
                r.request_id, self._index[r.request_id], r.tokens, r.finish_reason, r.stop_match
            )
            self._send(messages.pack(messages.FINISHED, message))
        for handed in self.engine.handed:
            head = messages.HandoverMessage(handed.request_id, handed.index, len(handed.blocks), handed.record)
            self._send(messages.pack(messages.HANDOVER, head))
            for block in handed.blocks:
                self._send(Frame(messages.BLOCK, block))
        self.engine.handed.clear()


class LocalLink:
    """A prefill side in the same process; the bytes are those that a socket would carry."""

    def __init__(self, options: Options, model: Any = None) -> None:
        self._sent: list[bytes] = []
        self._reader, self._back = messages.Reader(), messages.Reader()
        self.prefill = PrefillSide(options, lambda frame: self._sent.append(frame.encode()), model)

    def send(self, frame: Frame) -> None:
        for arrived in self._back.feed(frame.encode()):
            self.prefill.take(arrived)

    def receive(self, wait: bool) -> list[Frame]:
        self.prefill.step()
        sent, self._sent[:] = b"".join(self._sent), []
        return self._reader.feed(sent)

    def close(self) -> None:
        """Nothing is open."""


class Split:
    """The decode side, with the same calls as an ``Engine``. New requests go to the prefill side over ``link``."""

    def __init__(self, options: Options, link: Link, model: Any = None) -> None:
        self.engine = Engine(replace(options, role="decode"), model)
        self.link = link
        self._away: dict[str, Sequence] = {}  # what the prefill side has
        self._partial: tuple[messages.HandoverMessage, list[bytes]] | None = None
        self._met = False
        self._arrivals = 0
        self._results: list[Result] = []
        link.send(Frame(messages.PEER, sl.Peer.of(self.engine.batch.layout).encode()))

    def __enter__(self) -> Split:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.link.close()

    @property
    def counts(self) -> Counts:
        return self.engine.counts

    @property
    def has_work(self) -> bool:
        return bool(self._away or self._results or self.engine.has_work)

    def add(self, request_id: str, prompt: bytes | Items[int], sampling: sl.SamplingParams | None = None) -> None:
        """Queue a request."""
        tokens = list(prompt)
        self.engine.check(request_id, tokens)
        if request_id in self._away:
            raise ValueError(f"request {request_id!r} is being served already; give each its own id")
        self._send_away(Sequence(request_id, self._arrivals, tokens, sampling or sl.SamplingParams()))
        self._arrivals += 1

    def abort(self, request_id: str) -> None:
        """Give a request up, wherever it is."""
        if request_id not in self._away:
            self.engine.abort(request_id)
            return
        self.link.send(Frame(messages.ABORT, request_id.encode()))
        self._results.append(Result(request_id, self._away.pop(request_id).outputs, "aborted"))

    def step(self) -> list[Result]:
        """Take what has arrived and run one step on it. Waits for the other side where there is nothing else to do."""
        for frame in self.link.receive(wait=not self.engine.has_work and not self._results):
            self.take(frame)
        results, self._results = self._results, []
        if self.engine.has_work:
            results += self.engine.step()
        back = self.engine.scheduler.sent_back
        while back:
            self._send_away(back.pop(0))
        return results

    def run(self) -> dict[str, Result]:
        """Step until nothing is left."""
        results: dict[str, Result] = {}
        while self.has_work:
            results.update((r.request_id, r) for r in self.step())
        return results

    def _send_away(self, seq: Sequence) -> None:
        self._away[seq.request_id] = seq
        self.link.send(messages.pack(messages.REQUEST, messages.RequestMessage.of(seq)))

    def take(self, frame: Frame) -> None:
        """What the other side says. ``SplitError`` or ``PacketError`` for what it must not say."""
        if self._partial is not None:
            self._take_block(frame)
        elif frame.kind == messages.PEER:
            sl.check_peer(self.engine.batch.layout, frame.body)
            self._met = True
        elif not self._met:
            raise SplitError(f"a frame of kind {frame.kind!r} before the sides have met")
        elif frame.kind == messages.HANDOVER:
            head = messages.unpack(frame, messages.HandoverMessage)
            if not 0 < head.blocks <= self.engine.batch.config.max_blocks_per_seq:
                raise SplitError(f"{head.blocks} blocks, allowed: 1 to {self.engine.batch.config.max_blocks_per_seq}")
            self._partial = head, []
        elif frame.kind == messages.FINISHED:
            m = messages.unpack(frame, messages.FinishedMessage)
            if self._is_away(m.request_id, m.index):
                del self._away[m.request_id]
                self._results.append(Result(m.request_id, m.tokens, m.finish_reason, m.stop_match))
        else:
            messages.unexpected(frame)

    def _take_block(self, frame: Frame) -> None:
        assert self._partial is not None
        head, blocks = self._partial
        if frame.kind != messages.BLOCK:
            raise SplitError(f"a frame of kind {frame.kind!r} after {len(blocks)} of {head.blocks} blocks")
        blocks.append(frame.body)
        if len(blocks) == head.blocks:
            self._partial = None
            if self._is_away(head.request_id, head.index):
                self.engine.add_handed(Handed(head.request_id, head.index, head.record, blocks))
                del self._away[head.request_id]

    def _is_away(self, request_id: str, index: int) -> bool:
        """Whether an answer is still wanted: the request may have been aborted meanwhile."""
        return request_id in self._away and self._away[request_id].index == index


def serve(
    engine: Engine | Split, prompts: Iterable[tuple[str, bytes]], sampling: sl.SamplingParams
) -> dict[str, Result]:
    """The results of all ``prompts`` (id, text)."""
    for request_id, prompt in prompts:
        engine.add(request_id, prompt, sampling)
    return engine.run()
