"""A byte-level transformer with three MTP heads, in NumPy: packed rows in, hidden states out, a paged KV cache.

The same forward stands in torch in `torch_model.py`; `train.py` made the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

VOCAB_SIZE = 257  # the bytes, and the end of text
EOS = 256
MAX_LEN = 512

HIDDEN_SIZE = 128
NUM_HEADS = 4
HEAD_DIM = HIDDEN_SIZE // NUM_HEADS
NUM_LAYERS = 4  # of the target; each MTP head is one layer more
NUM_MTP_HEADS = 3
TARGET_WIDTH = 512  # of the layers' MLP
HEAD_WIDTH = 256

EPSILON = 1e-6
WEIGHTS = Path(__file__).with_name("weights.npz")

Floats = NDArray[np.float32]
Ints = NDArray[Any]


class Inputs(NamedTuple):
    """Packed rows, as `prepare_step` and `prepare_draft` give them; T' tokens, S rows.

    NumPy arrays for a `Model`, torch's tensors for a `TorchModel`.
    """

    input_ids: Any  # [T'], a pad behind the last token
    positions: Any  # [T']
    batch_id_per_token: Any  # [T'] the slot, -1 behind the last token
    cu_seqlens_q: Any  # [S+1], by the row's position in the step
    cu_seqlens_k: Any  # [S+1]
    block_tables: Any  # [slots, blocks], -1 where there is none


class Row(NamedTuple):
    """One row of a step that has tokens."""

    tokens: slice  # of the packed tokens
    blocks: Any  # the blocks that hold its keys, in order
    num_keys: int


class Cache:
    """Keys and values of every layer in blocks; head k's layer is `num_layers + k - 1`."""

    def __init__(self, num_layers: int, num_blocks: int, block_size: int) -> None:
        shape = (num_layers, num_blocks, block_size, NUM_HEADS, HEAD_DIM)
        self.block_size = block_size
        self.keys: Floats = np.zeros(shape, np.float32)
        self.values: Floats = np.zeros(shape, np.float32)


def weight_shapes() -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight. A matrix is [in, out]."""
    d = HIDDEN_SIZE
    shapes: dict[str, tuple[int, ...]] = {"embedding": (VOCAB_SIZE, d), "final_norm": (d,)}
    for layer in range(NUM_LAYERS + NUM_MTP_HEADS):
        width = TARGET_WIDTH if layer < NUM_LAYERS else HEAD_WIDTH
        shapes |= {
            f"layer{layer}.attention_norm": (d,),
            f"layer{layer}.qkv": (d, 3 * d),
            f"layer{layer}.out": (d, d),
            f"layer{layer}.mlp_norm": (d,),
            f"layer{layer}.up": (d, width),
            f"layer{layer}.down": (width, d),
        }
    for head in range(1, NUM_MTP_HEADS + 1):
        shapes |= {
            f"head{head}.hidden_norm": (d,),
            f"head{head}.embedding_norm": (d,),
            f"head{head}.join": (2 * d, d),
        }
    return shapes


def initial_weights(seed: int) -> dict[str, Floats]:
    """What training begins with: norms 1, the embedding small, matrices by their input width."""
    rng = np.random.default_rng(seed)
    depth = (2 * NUM_LAYERS) ** -0.5  # keeps the sum of the layers' outputs near 1
    weights: dict[str, Floats] = {}
    for name, shape in weight_shapes().items():
        if len(shape) == 1:
            weights[name] = np.ones(shape, np.float32)
            continue
        scale = 0.04 if name == "embedding" else float(shape[0]) ** -0.5
        if name.endswith((".out", ".down")):
            scale *= depth
        weights[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
    return weights


def load_weights(path: Path | None = None) -> dict[str, Floats]:
    """The weights file as float32. Raises ValueError if a name or a shape is not the model's."""
    with np.load(path or WEIGHTS, allow_pickle=False) as file:
        weights = {name: file[name].astype(np.float32) for name in file.files}
    got, wanted = {name: array.shape for name, array in weights.items()}, weight_shapes()
    if got != wanted:
        wrong = sorted(name for name in got.keys() | wanted.keys() if got.get(name) != wanted.get(name))
        raise ValueError(f"{path or WEIGHTS}: weights {wrong} do not fit this model; make the file with train.py")
    return weights


def rope_tables() -> tuple[Floats, Floats]:
    """cos and sin [MAX_LEN, HEAD_DIM / 2] of the rotary positions."""
    frequencies = 10000.0 ** -(np.arange(HEAD_DIM // 2) * 2.0 / HEAD_DIM)
    angles = np.arange(MAX_LEN)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rows_of(
    cu_seqlens_q: list[int], cu_seqlens_k: list[int], slot_of_token: list[int], tables: Any, block_size: int
) -> list[Row]:
    """The rows with tokens. Raises ValueError if a row's keys are not covered by blocks."""
    rows = []
    for first, end, k_first, k_end in zip(
        cu_seqlens_q[:-1], cu_seqlens_q[1:], cu_seqlens_k[:-1], cu_seqlens_k[1:], strict=True
    ):
        if first == end:
            continue
        slot, num_keys = slot_of_token[first], k_end - k_first
        blocks = tables[slot, : -(-num_keys // block_size)]
        if num_keys > MAX_LEN or len(blocks) * block_size < num_keys or bool((blocks < 0).any()):
            raise ValueError(
                f"slot {slot}: {num_keys} keys in blocks {blocks.tolist()} of {block_size}; allowed: at most "
                f"{MAX_LEN} keys, each in a block; give the row its blocks before the step"
            )
        rows.append(Row(slice(first, end), blocks, num_keys))
    return rows


class Model:
    """The forward in float32 NumPy. A token's results depend on its own row only (but for rounding).

    It is written for a CPU: it reads the rows' lengths (`cu_seqlens_q`, `cu_seqlens_k`) and works row by row. On a
    device that would be a wait; kernels there take the packed arrays as they are, and no shape depends on the lengths.
    """

    num_layers = NUM_LAYERS
    num_heads = NUM_HEADS
    head_dim = HEAD_DIM
    hidden_size = HIDDEN_SIZE
    num_heads_mtp = NUM_MTP_HEADS

    def __init__(self, weights: Mapping[str, Floats]) -> None:
        self.weights = dict(weights)
        self._cos, self._sin = rope_tables()

    @classmethod
    def load(cls, path: Path | None = None) -> Model:
        """The trained model: `weights.npz` beside this file, or the file at `path`."""
        return cls(load_weights(path))

    def new_cache(self, num_blocks: int, block_size: int) -> Cache:
        return Cache(NUM_LAYERS + NUM_MTP_HEADS, num_blocks, block_size)

    def forward(self, inputs: Inputs, cache: Cache) -> Floats:
        """Hidden states [T', D], zeros behind the last token. Writes every token's keys and values to its block."""
        count = int(inputs.cu_seqlens_q[-1])
        hidden = self.weights["embedding"][inputs.input_ids[:count]]
        return self._layers(range(NUM_LAYERS), hidden, inputs, cache)

    def draft_forward(self, head: int, inputs: Inputs, hidden: Floats, cache: Cache) -> Floats:
        """Hidden states [T', D] of MTP head 1, 2 or 3; `hidden` [T', D] is the former level's, aligned with inputs.

        The head's token at position i is the one at i + head of the text; its logits are those of i + head + 1.
        """
        if not 1 <= head <= NUM_MTP_HEADS:
            raise ValueError(f"head {head}: the model has heads 1 to {NUM_MTP_HEADS}")
        count = int(inputs.cu_seqlens_q[-1])
        embedding = self.weights["embedding"][inputs.input_ids[:count]]
        joined = np.concatenate(
            [
                _norm(hidden[:count], self.weights[f"head{head}.hidden_norm"]),
                _norm(embedding, self.weights[f"head{head}.embedding_norm"]),
            ],
            axis=-1,
        )
        layer = NUM_LAYERS + head - 1
        return self._layers(range(layer, layer + 1), joined @ self.weights[f"head{head}.join"], inputs, cache)

    def logits(self, hidden: Floats) -> Floats:
        """Logits [R, V] of hidden states [R, D], the target's or a head's."""
        return _norm(hidden, self.weights["final_norm"]) @ self.weights["embedding"].T

    def _layers(self, layers: range, hidden: Floats, inputs: Inputs, cache: Cache) -> Floats:
        count = len(hidden)
        slots, positions = inputs.batch_id_per_token[:count], inputs.positions[:count]
        rows = rows_of(
            inputs.cu_seqlens_q.tolist(),
            inputs.cu_seqlens_k.tolist(),
            slots.tolist(),
            inputs.block_tables,
            cache.block_size,
        )
        place = (inputs.block_tables[slots, positions // cache.block_size], positions % cache.block_size)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        for layer in layers:
            weights, name = self.weights, f"layer{layer}"
            qkv = _norm(hidden, weights[f"{name}.attention_norm"]) @ weights[f"{name}.qkv"]
            query, key, value = qkv.reshape(count, 3, NUM_HEADS, HEAD_DIM).swapaxes(0, 1)  # each [T, H, hd]
            cache.keys[layer][place] = _rotate(key, cos, sin)
            cache.values[layer][place] = value
            attended = _attend(_rotate(query, cos, sin), rows, positions, cache.keys[layer], cache.values[layer])
            hidden = hidden + attended @ weights[f"{name}.out"]
            wide = np.maximum(_norm(hidden, weights[f"{name}.mlp_norm"]) @ weights[f"{name}.up"], 0)
            hidden = hidden + (wide * wide) @ weights[f"{name}.down"]
        padded = np.zeros((len(inputs.input_ids), HIDDEN_SIZE), np.float32)
        padded[:count] = hidden
        return padded


def _norm(x: Floats, weight: Floats) -> Floats:
    scale = np.einsum("td,td->t", x, x)[:, None] / np.float32(HIDDEN_SIZE) + np.float32(EPSILON)
    normed: Floats = x / np.sqrt(scale) * weight
    return normed


def _rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    left, right = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return np.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def _attend(query: Floats, rows: list[Row], positions: Ints, keys: Floats, values: Floats) -> Floats:
    """Each token over its row's keys at positions up to its own: [T, D]."""
    out = np.empty((len(query), HIDDEN_SIZE), np.float32)
    for row in rows:
        # Cut to the row's keys, since what lies behind may be anything, NaN too, and 0 * NaN is not 0.
        key = keys[row.blocks].reshape(-1, NUM_HEADS, HEAD_DIM)[: row.num_keys]
        value = values[row.blocks].reshape(-1, NUM_HEADS, HEAD_DIM)[: row.num_keys]
        scores = query[row.tokens].transpose(1, 0, 2) @ key.transpose(1, 2, 0)  # [H, T, K]
        scores *= np.float32(HEAD_DIM**-0.5)
        behind = np.arange(row.num_keys) > positions[row.tokens, None]  # [T, K]
        np.copyto(scores, -np.inf, where=behind)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        mixed = scores @ value.transpose(1, 0, 2) / scores.sum(axis=-1, keepdims=True)  # [H, T, hd]
        out[row.tokens] = mixed.transpose(1, 0, 2).reshape(-1, HIDDEN_SIZE)
    return out
