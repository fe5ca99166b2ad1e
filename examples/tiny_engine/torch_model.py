"""The forward of `model.py` on torch tensors: paged for the engine, dense for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from examples.tiny_engine.model import (
    EPSILON,
    HEAD_DIM,
    HIDDEN_SIZE,
    NUM_HEADS,
    NUM_LAYERS,
    NUM_MTP_HEADS,
    Inputs,
    Row,
    load_weights,
    rope_tables,
    rows_of,
)

Weights = Mapping[str, Tensor]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer; query, key, value [..., T, H, hd] -> [..., T, D]


class TorchCache:
    """Keys and values of every layer in blocks, as `model.Cache`."""

    def __init__(self, num_layers: int, num_blocks: int, block_size: int) -> None:
        shape = (num_layers, num_blocks, block_size, NUM_HEADS, HEAD_DIM)
        self.block_size = block_size
        self.keys = torch.zeros(shape)
        self.values = torch.zeros(shape)


class TorchModel:
    """`model.Model` on torch tensors; inputs, hidden states and the cache are torch's.

    Gradients are switched off inside the methods: a decorator of torch has no type where torch is not installed.
    """

    num_layers = NUM_LAYERS
    num_heads = NUM_HEADS
    head_dim = HEAD_DIM
    hidden_size = HIDDEN_SIZE
    num_heads_mtp = NUM_MTP_HEADS

    def __init__(self, weights: Weights) -> None:
        self.weights = dict(weights)
        self._cos, self._sin = map(torch.from_numpy, rope_tables())

    @classmethod
    def load(cls, path: Path | None = None) -> TorchModel:
        """The trained model: `weights.npz` beside this file, or the file at `path`."""
        return cls({name: torch.from_numpy(array) for name, array in load_weights(path).items()})

    def new_cache(self, num_blocks: int, block_size: int) -> TorchCache:
        return TorchCache(NUM_LAYERS + NUM_MTP_HEADS, num_blocks, block_size)

    def forward(self, inputs: Inputs, cache: TorchCache) -> Tensor:
        """Hidden states [T', D], zeros behind the last token. Writes every token's keys and values to its block.

        Reads the rows' lengths on the host, as `model.Model` does.
        """
        with torch.no_grad():
            count = int(inputs.cu_seqlens_q[-1])
            hidden = self.weights["embedding"][inputs.input_ids[:count].long()]
            return self._layers(range(NUM_LAYERS), hidden, inputs, cache)

    def draft_forward(self, head: int, inputs: Inputs, hidden: Tensor, cache: TorchCache) -> Tensor:
        """Hidden states [T', D] of MTP head 1, 2 or 3; `hidden` [T', D] is the former level's, aligned with inputs."""
        if not 1 <= head <= NUM_MTP_HEADS:
            raise ValueError(f"head {head}: the model has heads 1 to {NUM_MTP_HEADS}")
        with torch.no_grad():
            count = int(inputs.cu_seqlens_q[-1])
            joined = join(self.weights, head, hidden[:count], inputs.input_ids[:count].long())
            layer = NUM_LAYERS + head - 1
            return self._layers(range(layer, layer + 1), joined, inputs, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, V] of hidden states [R, D], the target's or a head's."""
        with torch.no_grad():
            return output_logits(self.weights, hidden)

    def _layers(self, layers: range, hidden: Tensor, inputs: Inputs, cache: TorchCache) -> Tensor:
        count = len(hidden)
        slots, positions = inputs.batch_id_per_token[:count].long(), inputs.positions[:count].long()
        tables = inputs.block_tables.long()
        rows = rows_of(
            inputs.cu_seqlens_q.tolist(), inputs.cu_seqlens_k.tolist(), slots.tolist(), tables, cache.block_size
        )
        place = (tables[slots, positions // cache.block_size], positions % cache.block_size)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            cache.keys[layer][place] = key
            cache.values[layer][place] = value
            return _attend(query, rows, positions, cache.keys[layer], cache.values[layer])

        cos, sin = self._cos[positions, None], self._sin[positions, None]
        for layer in layers:
            hidden = block(self.weights, layer, hidden, cos, sin, attend)
        padded = torch.zeros(len(inputs.input_ids), HIDDEN_SIZE)
        padded[:count] = hidden
        return padded


def dense_hidden(weights: Weights, ids: Tensor, cos: Tensor, sin: Tensor) -> list[Tensor]:
    """Hidden states of whole texts `ids` [B, T]: the target's [B, T, D], then head k's [B, T - k, D]."""

    def attend(_: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # its backward is three times slower in bfloat16
            query, key, value = (x.float().transpose(-3, -2) for x in (query, key, value))
            return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(-3, -2).flatten(-2)

    cos, sin = cos[: ids.shape[1], None], sin[: ids.shape[1], None]
    hidden = weights["embedding"][ids]
    for layer in range(NUM_LAYERS):
        hidden = block(weights, layer, hidden, cos, sin, attend)
    levels = [hidden]
    for head in range(1, NUM_MTP_HEADS + 1):
        joined = join(weights, head, levels[-1][:, :-1], ids[:, head:])
        levels.append(block(weights, NUM_LAYERS + head - 1, joined, cos[:-head], sin[:-head], attend))
    return levels


def block(weights: Weights, layer: int, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
    """One transformer layer on hidden states [..., T, D]."""
    name = f"layer{layer}"
    qkv = _norm(hidden, weights[f"{name}.attention_norm"]) @ weights[f"{name}.qkv"]
    query, key, value = qkv.view(*qkv.shape[:-1], 3, NUM_HEADS, HEAD_DIM).unbind(-3)
    attended = attend(layer, _rotate(query, cos, sin), _rotate(key, cos, sin), value)
    hidden = hidden + attended @ weights[f"{name}.out"]
    wide = (_norm(hidden, weights[f"{name}.mlp_norm"]) @ weights[f"{name}.up"]).relu()
    return hidden + (wide * wide) @ weights[f"{name}.down"]


def join(weights: Weights, head: int, hidden: Tensor, ids: Tensor) -> Tensor:
    """What an MTP head's layer reads: the former level's hidden state and the next token's embedding."""
    left = _norm(hidden, weights[f"head{head}.hidden_norm"])
    right = _norm(weights["embedding"][ids], weights[f"head{head}.embedding_norm"])
    return torch.cat([left, right], dim=-1) @ weights[f"head{head}.join"]


def output_logits(weights: Weights, hidden: Tensor) -> Tensor:
    return _norm(hidden, weights["final_norm"]) @ weights["embedding"].T


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (HIDDEN_SIZE,), weight, EPSILON)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


def _attend(query: Tensor, rows: list[Row], positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Each token over its row's keys at positions up to its own: [T, D]."""
    out = torch.empty(len(query), HIDDEN_SIZE)
    for row in rows:
        # Cut to the row's keys, since what lies behind may be anything, NaN too, and 0 * NaN is not 0.
        key = keys[row.blocks].flatten(0, 1)[: row.num_keys]  # [K, H, hd]
        value = values[row.blocks].flatten(0, 1)[: row.num_keys]
        scores = query[row.tokens].transpose(0, 1) @ key.permute(1, 2, 0) * HEAD_DIM**-0.5  # [H, T, K]
        scores.masked_fill_(torch.arange(row.num_keys) > positions[row.tokens, None], -torch.inf)
        mixed = scores.softmax(dim=-1) @ value.transpose(0, 1)  # [H, T, hd]
        out[row.tokens] = mixed.transpose(0, 1).flatten(1)
    return out
