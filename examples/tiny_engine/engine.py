"""The engine: bytes in, bytes out. ``step`` is the loop of a serving engine, and shows where slotline stands in it.

slotline's rows are the only keeper of what a request has on the device: its tokens, lengths, drafts and stop
sequences. The scheduler plans from fetched results; the model sees packed arrays and a block table.
"""

from __future__ import annotations

import importlib
from collections.abc import Container, Iterable
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import numpy as np

import slotline as sl
from examples.tiny_engine import kv, requests, spec
from examples.tiny_engine.model import Inputs, Model
from examples.tiny_engine.options import Options
from examples.tiny_engine.results import REFUSED, Counts, Handed, Result
from examples.tiny_engine.scheduler import Scheduler, Sequence

REASONS = {
    sl.FinishReason.EOS: "eos",
    sl.FinishReason.STOP: "stop",
    sl.FinishReason.LENGTH: "length",
}


class Row(NamedTuple):
    """A row of a step, as it was when the step was prepared."""

    seq: Sequence
    slot: int
    decodes: bool


class Flight(NamedTuple):
    """A step whose results have not been taken."""

    fetch: Any
    rows: dict[str, Row]


class Engine:
    """Serves requests until there are none.

    ``model``: a ``Model`` or a ``TorchModel`` (framework torch). ``backend``: another device than the host's memory; a
    subclass says how its tensors come to the model (``own``).
    """

    def __init__(self, options: Options, model: Any = None, backend: sl.Backend | None = None) -> None:
        self.options = options
        config = options.batch_config()
        layout = sl.target_layout(config)
        if options.spec_method == "mtp":
            layout |= sl.mtp_layout(config)
        self.batch = sl.SlotBatch(layout, backend or sl.load_backend("cpu", framework=options.framework))
        # The model's own arrays: torch's tensors as they are; paddle's through NumPy, which looks at the same memory.
        self.torch = options.framework == "torch"
        self.xp: Any = importlib.import_module("torch" if self.torch else "numpy")
        self.model = load_model(options.framework) if model is None else model
        self.cache = self.model.new_cache(options.num_blocks, options.block_size)
        self.scheduler = Scheduler(config, token_budget=options.token_budget, chunk=options.chunk, lags=options.lags)
        self.counts = Counts(config.num_drafts)
        self.handed: list[Handed] = []
        """Role prefill: what was handed over and not yet sent."""
        self._flight: Flight | None = None
        self._arrivals = 0
        self._aborts: list[str] = []
        self._results: list[Result] = []

    # -- requests

    def add(
        self,
        request_id: str,
        prompt: bytes | Items[int],
        sampling: sl.SamplingParams | None = None,
        *,
        outputs: Iterable[int] = (),
        index: int | None = None,
    ) -> None:
        """Queue a request. ``outputs``: what it has generated elsewhere; ``index``: its age, by default the newest.

        ``TypeError`` or ``ValueError`` for one that cannot be served.
        """
        self.scheduler.wait(self.sequence(request_id, prompt, sampling, outputs=outputs, index=index))

    def sequence(
        self,
        request_id: str,
        prompt: bytes | Items[int],
        sampling: sl.SamplingParams | None = None,
        *,
        outputs: Iterable[int] = (),
        index: int | None = None,
    ) -> Sequence:
        """The request that ``add`` queues."""
        request = requests.make(request_id, prompt, outputs, sampling, self.options)
        if request_id in self._aborts:  # it was given up: what comes now by its id is another request
            self._take_aborts()
        if self.scheduler.find(request_id):
            raise ValueError(f"request {request_id!r} is being served already; give each its own id")
        if index is None:
            index, self._arrivals = self._arrivals, self._arrivals + 1
        ids, generated = request.prompt_token_ids.tolist(), request.output_token_ids.tolist()
        return Sequence(request_id, index, ids, request.sampling, generated)

    def add_handed(self, handed: Handed) -> None:
        """Role decode: queue what a prefill engine handed over. ``PacketError`` for a record that is not one."""
        request = sl.Request.from_handover(handed.record, self.batch.layout)
        outputs = [*request.output_token_ids.tolist(), int(request.draft_token_ids[0])]
        sequence = Sequence(
            request.request_id, handed.index, request.prompt_token_ids.tolist(), request.sampling, outputs
        )
        kv.check_blocks(self.cache, handed.blocks, sequence.length - 1)
        sequence.request, sequence.kv = request, handed.blocks
        self.scheduler.wait(sequence)

    def abort(self, request_id: str) -> None:
        """Give a request up. It takes effect while a step is open, as a message to a serving engine would."""
        self._aborts.append(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.has_work or self._flight or self._aborts or self._results)

    def run(self) -> dict[str, Result]:
        """Step until nothing is left."""
        results: dict[str, Result] = {}
        while self.has_work:
            results.update((r.request_id, r) for r in self.step())
        return results

    # -- one step

    def step(self) -> list[Result]:
        """Plan, insert, run the model, commit. Returns the requests that have ended."""
        tasks = self.scheduler.plan()
        receipt = sl.insert_tasks(self.batch, tasks, on_invalid="skip")
        self._refuse(receipt.refused)
        for seq in self.scheduler.admitted:
            kv.write_blocks(self.cache, seq.blocks, seq.kv)
            seq.kv = []
        for request_id, ended in receipt.ended.items():  # the handed-over token was the last one (D4)
            self._end(self.scheduler.running[request_id], ended.finish_reason, ended.stop_match)
        former, self._flight = self._flight, None
        if receipt.launch_tokens:
            self._flight = self._run_model({t.request_id for t in tasks if isinstance(t, sl.PrefillTask)})
        else:
            self._take_aborts()
        if former:
            self._take(former)
        if self._flight and not self.options.lags:
            self._take(self._flight)
            self._flight = None
        results, self._results = self._results, []
        return results

    def _run_model(self, prefilled: Container[str]) -> Flight:
        """Everything that the device does for a step.

        Nothing here reads from it but drafts by prompt lookup, and the model: one for the CPU needs the rows' lengths.
        """
        batch, running = self.batch, self.scheduler.running
        step = sl.prepare_step(batch)
        rows = {r: Row(running[r], batch.slot_of(r), r not in prefilled) for r in step.request_ids}
        offered = self.copy(batch["draft_tokens"])[:, 1:]
        hidden = self.model.forward(self.inputs(step), self.cache)
        picked = self.model.logits(hidden[self.own(step.logits_rows)]).argmax(-1)
        accept_tokens, accept_num = sl.verify_greedy(offered, self._by_slot(step, picked))

        # On a device the work above is only queued, and the host goes on: rows may end or move, and the step's
        # results will still find their requests (S2).
        self._take_aborts()
        if self.options.condense_every and self.counts.steps % self.options.condense_every == 0:
            batch.condense()

        sl.commit_step(batch, step, accept_tokens, accept_num)
        if self.options.spec_method == "mtp":
            sl.commit_drafts(batch, step, spec.draft(self, step, hidden))
        # Whatever the host wants to know of the step rides along with its results; it is not read later.
        counts = {"offered": (offered >= 0).sum(-1), "accepted": accept_num}  # each [S]
        flight = Flight(batch.fetch(step, extra=counts), rows)
        if self.options.spec_method == "ngram":
            sl.commit_drafts(batch, step, spec.lookup(self._histories(flight), batch.config))
        self.counts.steps += 1
        return flight

    def inputs(self, step: Any) -> Inputs:
        """What the model reads, of a Step or a Draft; the block tables as the rows stand now."""
        own = self.own
        return Inputs(
            own(step.input_ids),
            own(step.positions),
            own(step.batch_id_per_token),
            own(step.cu_seqlens_q),
            own(step.cu_seqlens_k),
            own(self.batch["block_tables"]),
        )

    def _by_slot(self, step: sl.Step, picked: Any) -> Any:
        """The target's tokens [S, K + 1] by slot, of ``picked`` [S * (K + 1)], which stand one behind the other.

        Slots 0 and 2 with 2 and 1 logits: picked = a b c . . . gives a b c | c . . | c . . for K = 2. A row's own
        tokens come first; what stands behind them is others', or the first token, and no one reads it: a row with n
        drafts asks for n + 1 tokens. No shape depends on what is on the device (L2).
        """
        xp, config = self.xp, self.batch.config
        count = len(picked)
        # The slot of each token; behind the last one a slot that does not exist, so that the array stays in order.
        slot = self.own(step.batch_id_per_token)[self.own(step.logits_rows)]
        slot = xp.where(xp.arange(count) < self.own(step.num_logits), slot, config.max_num_seqs)
        # Rows come in the order of their slots, so a slot's first token is where its number would be put.
        first = xp.searchsorted(slot, xp.arange(config.max_num_seqs))
        at = first[:, None] + xp.arange(config.num_drafts + 1)
        return picked[xp.where(at < count, at, 0)]

    def own(self, tensor: Any) -> Any:
        """A tensor of the batch's framework as an array of the model's; no copy."""
        return tensor if self.torch else np.asarray(tensor)

    def copy(self, tensor: Any) -> Any:
        """The same in memory of its own."""
        return tensor.clone() if self.torch else np.array(tensor)

    # -- results

    def _take(self, flight: Flight) -> None:
        for out in flight.fetch.result():
            seq, _, decodes = flight.rows[out.request_id]
            if out.stale or seq.is_over:  # given up while the step was under way
                continue
            if decodes:
                self.counts.add_row(int(out.extra["offered"]), int(out.extra["accepted"]), len(out.tokens))
            if out.finish_reason != sl.FinishReason.HANDOVER:
                seq.outputs += out.tokens
                if out.finish_reason:
                    self._end(seq, out.finish_reason, out.stop_match)
            elif self.scheduler.runs(seq):  # else it was preempted meanwhile, and will be prefilled again
                seq.outputs += out.tokens
                record = sl.export_handover(self.batch, out.request_id).encode()
                blocks = kv.read_blocks(self.cache, seq.blocks, seq.length - 1)
                self.handed.append(Handed(seq.request_id, seq.index, record, blocks))
                self.scheduler.end(seq)

    def _end(self, seq: Sequence, reason: int, match: tuple[int, int] | None) -> None:
        self.scheduler.end(seq)
        self._answer(seq, REASONS[sl.FinishReason(reason)], match)

    def _answer(self, seq: Sequence, reason: str, match: tuple[int, int] | None = None) -> None:
        self._results.append(Result(seq.request_id, seq.index, seq.outputs, reason, match))

    def _refuse(self, faults: Items[sl.Fault]) -> None:
        """A request that asks for what cannot be is answered; the others have been inserted (I1)."""
        new = {seq.request_id: seq for seq in self.scheduler.admitted}
        for request_id in dict.fromkeys(f.request_id for f in faults):
            seq = new.get(request_id)
            if seq is None or seq.request is None:
                raise sl.TaskError(faults)
            own = [f for f in faults if f.request_id == request_id]
            self.scheduler.drop(seq)
            self.scheduler.admitted.remove(seq)
            self._answer(seq, REFUSED + requests.refusal(own, seq.request, self.batch.config))

    def _take_aborts(self) -> None:
        aborts, self._aborts = self._aborts, []
        scheduler = self.scheduler
        for request_id in aborts:
            for seq in scheduler.find(request_id):  # none: it has ended already
                if scheduler.runs(seq):
                    sl.insert_tasks(self.batch, [sl.AbortTask(request_id)])
                scheduler.drop(seq)
                scheduler.counts["AbortTask"] += 1
                self._answer(seq, "aborted")

    def _histories(self, flight: Flight) -> dict[int, list[int]]:
        """The text so far of each row that goes on, by its slot in the step."""
        outputs = [o for o in flight.fetch.result() if o.tokens and not o.finish_reason and not o.stale]
        rows = flight.rows
        return {
            rows[o.request_id].slot: rows[o.request_id].seq.prompt + rows[o.request_id].seq.outputs + o.tokens
            for o in outputs
        }


def load_model(framework: str) -> Any:
    """The model for a framework: torch's own, else the NumPy one. ``BackendUnavailable`` if it is missing."""
    sl.load_backend("cpu", framework=framework)  # says what to install, which an import in the model would not
    if framework != "torch":
        return Model.load()
    return importlib.import_module("examples.tiny_engine.torch_model").TorchModel.load()
