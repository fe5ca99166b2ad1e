"""An insertion written by hand, request after request and field after field: what engines do.

``PlainInserter`` takes what the scheduler gives (arrays of ids and a mapping of sampling values), and writes each field
of the row by a slice assignment in the framework at hand; rows are written whole, since nobody has cleared them.
``convert`` makes an array a tensor of the framework. ``through_tensors``: every value first becomes a tensor of its
own, as in engines that may not assign from the host. Nothing is validated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import slotline as sl


class Plain(NamedTuple):
    """A request as a scheduler holds it."""

    prompt: Any
    blocks: Any
    sampling: Mapping[str, Any]


ROWS = ("token_ids_all", "input_ids", "block_tables", "stop_seqs", "stop_seqs_len", "bad_tokens")


def _as_it_is(value: Any) -> Any:
    return value


class Frame(NamedTuple):
    """What an inserter needs of a framework."""

    buffer: Callable[[Any], Any]
    """A buffer of the framework with an array's values."""
    ids: Callable[[Any], Any]
    """An array of ids as the right side of a slice assignment."""
    number: Callable[[Any, str], Any]
    """A number for a field of a dtype, too."""


class PlainInserter:
    """Buffers as ``batch`` has them, in a framework of their own."""

    def __init__(self, batch: sl.SlotBatch, frame: Frame) -> None:
        self.config, self.frame = batch.config, frame
        self.buffers = {f.name: frame.buffer(np.array(batch.host_array(f.name))) for f in batch.layout}
        self.dtypes = {f.name: f.dtype for f in batch.layout}
        written = set(self._scalars(0, 0, 0, {})) | set(ROWS)
        self.others = {f.name: f.fill for f in batch.layout if f.name not in written}
        """Fields that a prefill leaves at their fill."""

    def insert(self, slot: int, request: Plain) -> None:
        """A prefill of the whole prompt."""
        b, number, dtypes = self.buffers, self.frame.number, self.dtypes
        n, held = len(request.prompt), len(request.blocks)
        ids = self.frame.ids(np.asarray(request.prompt))
        b["token_ids_all"][slot : slot + 1, :n] = ids
        b["token_ids_all"][slot : slot + 1, n:] = number(-1, "int64")
        b["input_ids"][slot : slot + 1, :n] = ids
        if n < b["input_ids"].shape[1]:
            b["input_ids"][slot : slot + 1, n:] = number(self.config.pad_token_id, "int64")
        b["block_tables"][slot : slot + 1, :held] = self.frame.ids(np.asarray(request.blocks, np.int32))
        b["block_tables"][slot : slot + 1, held:] = number(-1, "int64")
        b["stop_seqs"][slot : slot + 1] = number(-1, "int64")
        b["stop_seqs_len"][slot : slot + 1] = number(0, "int32")
        b["bad_tokens"][slot : slot + 1] = number(-1, "int64")
        for name, value in self._scalars(n, held, self.config.max_model_len, request.sampling).items():
            b[name][slot : slot + 1] = number(value, dtypes[name])
        for name, fill in self.others.items():
            b[name][slot : slot + 1] = number(fill, dtypes[name])

    def chunk(self, slot: int, ids: Any, start: int, last: bool, blocks: Any) -> None:
        """A chunk that continues a prefill."""
        b, number, n, held = self.buffers, self.frame.number, len(ids), len(blocks)
        b["input_ids"][slot : slot + 1, :n] = self.frame.ids(ids)
        b["input_ids"][slot : slot + 1, n:] = number(self.config.pad_token_id, "int64")
        b["seq_lens_encoder"][slot : slot + 1] = number(n, "int32")
        b["seq_lens_decoder"][slot : slot + 1] = number(start, "int32")
        b["seq_lens_this_time"][slot : slot + 1] = number(n, "int32")
        b["is_chunk_step"][slot : slot + 1] = number(not last, "bool")
        self.blocks(slot, 0, blocks)
        b["block_tables"][slot : slot + 1, held:] = number(-1, "int32")

    def blocks(self, slot: int, first: int, blocks: Any) -> None:
        """New blocks behind the ``first`` ones of a row."""
        held = first + len(blocks)
        self.buffers["block_tables"][slot : slot + 1, first:held] = self.frame.ids(np.asarray(blocks, np.int32))
        self.buffers["encoder_block_lens"][slot : slot + 1] = self.frame.number(held, "int32")

    def clear(self, slot: int, fills: Mapping[str, Any]) -> None:
        for name, fill in fills.items():
            self.buffers[name][slot : slot + 1] = self.frame.number(fill, self.dtypes[name])

    def _scalars(self, n: int, held: int, longest: int, sampling: Mapping[str, Any]) -> dict[str, Any]:
        get = sampling.get
        return {
            "prompt_lens": n,
            "seq_lens_encoder": n,
            "seq_lens_decoder": 0,
            "seq_lens_this_time": n,
            "step_idx": 0,
            "stop_flags": False,
            "is_chunk_step": False,
            "encoder_block_lens": held,
            "bad_tokens_len": 0,
            "ignore_eos": get("ignore_eos", False),
            "min_dec_len": get("min_dec_len", 0),
            "max_dec_len": get("max_dec_len", longest - n),
            "temperature": get("temperature", 1.0),
            "top_p": get("top_p", 1.0),
            "top_k": get("top_k", 0),
            "min_p": get("min_p", 0.0),
            "infer_seed": get("infer_seed", 0),
            "penalty_score": get("penalty_score", 1.0),
            "frequency_score": get("frequency_score", 0.0),
            "presence_score": get("presence_score", 0.0),
            "enable_thinking": get("enable_thinking", False),
            "max_think_lens": get("max_think_lens", -1),
            "max_reply_lens": get("max_reply_lens", -1),
            "limit_think_status": get("limit_think_status", 0),
            "reasoning_status": get("reasoning_status", 0),
            "temp_scaled_logprobs": get("temp_scaled_logprobs", False),
            "top_p_normalized_logprobs": get("top_p_normalized_logprobs", False),
        }

    def check(self, batch: sl.SlotBatch, slots: range) -> None:
        """Both hold the same rows."""
        for f in batch.layout:
            mine, theirs = np.asarray(self.buffers[f.name])[slots], batch.host_array(f.name)[slots]
            assert np.array_equal(mine, theirs), f.name


def numpy_direct() -> Frame:
    """Python's numbers straight into the slices."""
    return Frame(_as_it_is, _as_it_is, lambda value, dtype: value)


def numpy_arrays() -> Frame:
    """Every value as an array of the field's dtype first."""
    return Frame(_as_it_is, _as_it_is, lambda value, dtype: np.array([value], dtype))


def torch_direct() -> Frame:
    import torch

    return Frame(torch.from_numpy, torch.from_numpy, lambda value, dtype: value)


def torch_tensors() -> Frame:
    """Every value as a tensor of the field's dtype first."""
    import torch

    return Frame(
        torch.from_numpy, torch.tensor, lambda value, dtype: torch.tensor([value], dtype=getattr(torch, dtype))
    )


def paddle_direct() -> Frame:
    import paddle

    return Frame(paddle.to_tensor, paddle.to_tensor, lambda value, dtype: value)


def paddle_tensors() -> Frame:
    import paddle

    return Frame(paddle.to_tensor, paddle.to_tensor, lambda value, dtype: paddle.to_tensor([value], dtype=dtype))
