"""Prefill and decode as two engines. What passes between them is bytes, whether they are one process or two."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Any, Protocol

import slotline as sl
from examples.tiny_engine import answers, messages
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.messages import Frame, SplitError
from examples.tiny_engine.options import Options
from examples.tiny_engine.results import REFUSED, Counts, Handed, Result
from examples.tiny_engine.scheduler import Sequence


class Link(Protocol):
    """The way to the other side."""

    def send(self, frame: Frame) -> None: ...

    def receive(self, wait: bool) -> list[Frame]:
        """The frames that have arrived; ``wait``: at least one."""
        ...

    def close(self) -> None: ...


class PrefillSide:
    """Prefills what it is sent, and hands it over with the blocks of the KV cache.

    A request that it cannot serve is answered as refused; the others go on.
    """

    def __init__(self, options: Options, send: Callable[[Frame], None], model: Any = None) -> None:
        self.engine = Engine(replace(options, role="prefill"), model)
        self.is_ended = False
        self._send = send
        self._met = False
        send(Frame(messages.PEER, sl.Peer.of(self.engine.batch.layout).encode()))

    def take(self, frame: Frame) -> None:
        """What the other side says. ``SplitError``, ``PacketError`` or ``LayoutError`` for what it must not say."""
        if frame.kind == messages.PEER:
            sl.check_peer(self.engine.batch.layout, frame.body)
            self._met = True
        elif frame.kind == messages.END:
            self.is_ended = True
        elif not self._met:
            raise SplitError(f"a frame of kind {frame.kind!r} before the sides have met")
        elif frame.kind == messages.REQUEST:
            self._take_request(messages.unpack(frame, messages.RequestMessage))
        elif frame.kind == messages.ABORT:
            m = messages.unpack(frame, messages.AbortMessage)
            if any(seq.index == m.index for seq in self.engine.scheduler.find(m.request_id)):
                self.engine.abort(m.request_id)
        else:
            messages.unexpected(frame)

    def _take_request(self, m: messages.RequestMessage) -> None:
        try:
            self.engine.add(m.request_id, m.prompt, m.sampling(), outputs=m.outputs, index=m.index)
        except ValueError as error:
            self._answer(Result(m.request_id, m.index, m.outputs, f"{REFUSED}{error}"))

    def _answer(self, r: Result) -> None:
        reason = r.finish_reason[: messages.MAX_REASON]
        message = messages.FinishedMessage(r.request_id, r.index, r.tokens, reason, r.stop_match)
        self._send(messages.pack(messages.FINISHED, message))

    def step(self) -> None:
        for result in self.engine.step():
            if result.finish_reason != "aborted":  # the other side has answered those itself
                self._answer(result)
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
        """Queue a request. ``TypeError`` or ``ValueError`` for one that cannot be served."""
        if request_id in self._away:
            raise ValueError(f"request {request_id!r} is being served already; give each its own id")
        self._send_away(self.engine.sequence(request_id, prompt, sampling))

    def abort(self, request_id: str) -> None:
        """Give a request up, wherever it is."""
        if request_id not in self._away:
            self.engine.abort(request_id)
            return
        seq = self._away.pop(request_id)
        self.link.send(messages.pack(messages.ABORT, messages.AbortMessage(request_id, seq.index)))
        self._results.append(Result(request_id, seq.index, seq.outputs, "aborted"))

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
        self.link.send(messages.pack(messages.REQUEST, messages.RequestMessage.of(seq)))
        self._away[seq.request_id] = seq

    def take(self, frame: Frame) -> None:
        """What the other side says. ``SplitError``, ``PacketError`` or ``LayoutError`` for what it must not say."""
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
            if self._is_away(head.request_id, head.index):
                answers.check_handover(self._away[head.request_id], head)
            self._partial = head, []
        elif frame.kind == messages.FINISHED:
            m = messages.unpack(frame, messages.FinishedMessage)
            if self._is_away(m.request_id, m.index):
                answers.check_finished(self._away.pop(m.request_id), m)
                self._results.append(Result(m.request_id, m.index, m.tokens, m.finish_reason, m.stop_match))
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
                try:
                    self.engine.add_handed(Handed(head.request_id, head.index, head.record, blocks))
                except ValueError as error:
                    raise SplitError(f"request {head.request_id!r} was handed over with {error}") from error
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
