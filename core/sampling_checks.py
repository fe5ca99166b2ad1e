"""What is checked of sampling values (rule I2), vectorised over the requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.checks import PrefillChecks
from slotline.core.padding import stop_faults, strip_padding
from slotline.core.sampling import UNSET


class SamplingChecks:
    """Finite values within their bounds, lengths that leave something to do, bad words and stop sequences."""

    _RANGES: tuple[tuple[str, float | None, float | None], ...] = (
        ("temperature", 0.0, None),
        ("top_p", None, 1.0),
        ("min_p", 0.0, 1.0),
        ("top_k", 0, None),
        ("penalty_score", None, None),
        ("frequency_score", None, None),
        ("presence_score", None, None),
    )
    _POSITIVE = ("top_p", "penalty_score")

    def __init__(self, checks: PrefillChecks) -> None:
        self.flag = checks.flag
        self.checks, self.p = checks, checks.p

    def run(self) -> None:
        columns = self.p.sampling
        for name, low, high in self._RANGES:
            self._range(name, columns[name], low, high)
        self._whole_numbers()
        self._lengths()
        for i, r in enumerate(self.p.requests):
            if len(np.asarray(r.sampling.bad_tokens)) or r.sampling.stop_lists:
                self._lists(i)

    def _range(self, name: str, values: NDArray[Any], low: float | None, high: float | None) -> None:
        finite = np.ones(len(values), bool)
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                narrow = values.astype(np.float32)  # as the device sees it
            finite = np.isfinite(narrow)
            self.flag(~finite, name, values, "finite", "a float32 that is finite")
            if name in self._POSITIVE:  # what rounds to 0 is not
                self.flag(finite & ~(narrow > 0), name, values, 0.0, "above 0")
        if low is not None:
            self.flag(finite & (values < low), name, values, low)
        if high is not None:
            self.flag(finite & (values > high), name, values, high)

    def _whole_numbers(self) -> None:
        """Values that an int32 field cannot hold; the seed alone has 64 bits."""
        info = np.iinfo(np.int32)
        for name in self.p.sampling.dtype.names or ():
            values = self.p.sampling[name]
            if values.dtype.kind != "i" or name in ("infer_seed", "max_dec_len"):
                continue
            self.flag(values > info.max, name, values, info.max)
            if name not in ("top_k", "min_dec_len"):
                self.flag(values < info.min, name, values, info.min)

    def _lengths(self) -> None:
        p = self.p
        least = p.sampling["min_dec_len"]
        low = p.max_dec_len < 1
        given = low & (p.sampling["max_dec_len"] != UNSET) & ~p.cut
        self.flag(given, "max_dec_len", p.max_dec_len, 1)
        done = ~low & (p.output_len >= p.max_dec_len) & (p.history_len <= p.config.max_model_len)
        self.flag(done, "output_token_ids", p.output_len, p.max_dec_len, "max_dec_len is reached; finish the request")
        self.flag(least < 0, "min_dec_len", least, 0)
        over = ~low & (least > p.max_dec_len) & (least <= np.iinfo(np.int32).max)
        self.flag(over, "min_dec_len", least, p.max_dec_len, "max_dec_len")

    def _lists(self, i: int) -> None:
        config, request = self.p.config, self.p.tasks[i].request
        found = []
        bad = np.asarray(request.sampling.bad_tokens)
        if len(bad) > config.max_bad_tokens:
            found.append(("bad_tokens", len(bad), config.max_bad_tokens, "max_bad_tokens"))
        wrong = bad[(bad < 0) | (bad >= config.vocab_size)]
        if len(wrong):
            found.append(("bad_tokens", int(wrong[0]), config.vocab_size, "token ids are 0 to vocab_size - 1"))
        lists = [strip_padding(seq) for seq in request.sampling.stop_lists]
        for fault in stop_faults(lists, config.max_stop_seqs, config.stop_seqs_max_len, config.vocab_size):
            found.append(("stop_seqs", fault.value, fault.bound, fault.hint))
        for field, value, bound, hint in found:
            self.checks.bad[i] = True
            self.checks.faults.add(request.request_id, field, value, bound, hint)
