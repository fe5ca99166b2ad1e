"""The model of `examples/tiny_engine`: paged and packed, it computes what a plain forward over whole texts does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples.tiny_engine.model import (
    HEAD_DIM,
    NUM_HEADS,
    NUM_LAYERS,
    NUM_MTP_HEADS,
    VOCAB_SIZE,
    WEIGHTS,
    Cache,
    Inputs,
    Model,
    weight_shapes,
)
from frameworks import require
from numpy.typing import NDArray

Array = NDArray[Any]
BLOCK_SIZE, NUM_BLOCKS, SLOTS = 8, 40, 4
# The blocks of a slot lie anywhere; the last of each table is unused.
TABLES = np.append(
    np.random.default_rng(7).permutation(NUM_BLOCKS)[:36].reshape(SLOTS, 9), np.full((SLOTS, 1), -1), axis=1
).astype(np.int32)
RNG = np.random.default_rng(3)
TEXTS = {slot: RNG.integers(0, VOCAB_SIZE, length) for slot, length in ((2, 61), (0, 24), (3, 40))}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load()


def pack(rows: list[tuple[int, int, Array]], pad: int = 0) -> Inputs:
    """Rows of (slot, start, ids), with `pad` tokens behind the last."""
    lengths = [len(ids) for _, _, ids in rows]
    behind = np.full(pad, -1)
    return Inputs(
        np.concatenate([*(ids for _, _, ids in rows), behind]).astype(np.int64),
        np.concatenate([*(start + np.arange(len(ids)) for _, start, ids in rows), behind * 0]).astype(np.int32),
        np.concatenate([*(np.full(len(ids), slot) for slot, _, ids in rows), behind]).astype(np.int32),
        np.cumsum([0, *lengths]).astype(np.int32),
        np.cumsum([0, *(start + len(ids) for _, start, ids in rows)]).astype(np.int32),
        TABLES,
    )


def run(model: Any, rows: list[tuple[int, int, int]], cache: Any, pad: int = 3) -> list[Array]:
    """The hidden states of every level for rows of (slot, start, end); the texts reach far enough for the heads."""
    levels: list[Array] = []
    for level in range(NUM_MTP_HEADS + 1):
        inputs = pack([(slot, start, TEXTS[slot][start + level : end + level]) for slot, start, end in rows], pad)
        levels.append(model.draft_forward(level, inputs, levels[-1], cache) if level else model.forward(inputs, cache))
    return levels


def in_chunks(model: Model, slot: int, end: int, size: int, cache: Cache) -> list[Array]:
    """The levels' hidden states of a text's first tokens, run in chunks."""
    parts = [run(model, [(slot, at, min(at + size, end))], cache, pad=0) for at in range(0, end, size)]
    return [np.concatenate(level) for level in zip(*parts, strict=True)]


def cells(cache: Any, slot: int, end: int) -> Array:
    """Keys and values [2, layers, end, heads, head_dim] of a slot's first positions."""
    at = np.arange(end)
    blocks, offsets = TABLES[slot, at // BLOCK_SIZE], at % BLOCK_SIZE
    return np.stack([cache.keys[:, blocks, offsets], cache.values[:, blocks, offsets]])


def plain(weights: dict[str, Array], text: Array, end: int) -> tuple[list[Array], Array]:
    """Every level's hidden states and all keys and values, in float64 and without blocks, rows or chunks."""

    def norm(x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights[name])

    def rotate(x: Array) -> Array:
        turn = np.exp(1j * np.arange(end)[:, None] * 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM))[:, None]
        turned = (x[..., : HEAD_DIM // 2] + 1j * x[..., HEAD_DIM // 2 :]) * turn
        return np.concatenate([turned.real, turned.imag], -1)

    def layer(x: Array, name: str) -> Array:
        qkv = norm(x, f"{name}.attention_norm") @ weights[f"{name}.qkv"]
        query, key, value = (part.reshape(end, NUM_HEADS, HEAD_DIM) for part in np.split(qkv, 3, axis=1))
        query, key = rotate(query), rotate(key)
        kept.append(np.stack([key, value]))
        scores = np.exp(np.einsum("thd,khd->htk", query, key) / np.sqrt(HEAD_DIM)) * np.tri(end)
        mixed = np.einsum("htk,khd->thd", scores / scores.sum(-1, keepdims=True), value).reshape(end, -1)
        x = x + mixed @ weights[f"{name}.out"]
        wide = np.maximum(norm(x, f"{name}.mlp_norm") @ weights[f"{name}.up"], 0)
        return np.asarray(x + wide**2 @ weights[f"{name}.down"])

    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    kept: list[Array] = []
    x = weights["embedding"][text[:end]]
    for index in range(NUM_LAYERS):
        x = layer(x, f"layer{index}")
    levels = [x]
    for head in range(1, NUM_MTP_HEADS + 1):
        embedding = weights["embedding"][text[head : end + head]]
        pair = [norm(levels[-1], f"head{head}.hidden_norm"), norm(embedding, f"head{head}.embedding_norm")]
        joined = np.concatenate(pair, -1) @ weights[f"head{head}.join"]
        levels.append(layer(joined, f"layer{NUM_LAYERS + head - 1}"))
    return levels, np.stack(kept, axis=1)


def assert_close(got: Array, wanted: Array) -> None:
    """Equal within 1e-4 of the wanted array's largest value."""
    assert got.shape == wanted.shape
    assert float(np.abs(got - wanted).max()) <= 1e-4 * float(np.abs(wanted).max())


@pytest.mark.parametrize("size", [1, 7, 57])
def test_chunks_give_the_hidden_states_and_the_cache_of_a_plain_forward(model: Model, size: int) -> None:
    cache = model.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    levels = in_chunks(model, 2, 57, size, cache)
    wanted, kept = plain(model.weights, TEXTS[2], 57)
    for got, level in zip(levels, wanted, strict=True):
        assert_close(got, level)
    for got, layer in zip(cells(cache, 2, 57).swapaxes(0, 1), kept.swapaxes(0, 1), strict=True):
        assert_close(got, layer)  # M3: of the target's layers and of each head's


def test_a_row_does_not_depend_on_the_rows_beside_it(model: Model) -> None:
    cache, alone = (model.new_cache(NUM_BLOCKS, BLOCK_SIZE) for _ in range(2))
    run(model, [(2, 0, 30), (3, 0, 20)], cache)
    run(model, [(2, 0, 30)], alone)
    together = run(model, [(0, 0, 19), (2, 30, 34), (3, 20, 21)], cache)
    for got, wanted in zip(together, run(model, [(2, 30, 34)], alone), strict=True):
        assert_close(got[19:23], wanted[:4])
    assert_close(cells(cache, 2, 34), cells(alone, 2, 34))


@pytest.mark.parametrize("poison", [1e6, np.nan])
def test_what_lies_behind_a_token_is_never_seen(model: Model, poison: float) -> None:
    clean, dirty = (model.new_cache(NUM_BLOCKS, BLOCK_SIZE) for _ in range(2))
    dirty.keys[:], dirty.values[:] = poison, poison
    for cache in (clean, dirty):
        run(model, [(2, 0, 21)], cache)
    for got, wanted in zip(run(model, [(2, 21, 25)], dirty), run(model, [(2, 21, 25)], clean), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_rejected_tokens_are_overwritten(model: Model) -> None:
    cache, fresh = (model.new_cache(NUM_BLOCKS, BLOCK_SIZE) for _ in range(2))
    for each in (cache, fresh):
        run(model, [(0, 0, 12)], each)
    model.forward(pack([(0, 12, np.array([5, 6, 7, 8]))]), cache)
    for got, wanted in zip(run(model, [(0, 12, 14)], cache), run(model, [(0, 12, 14)], fresh), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_padding_writes_nothing_and_gives_zeros(model: Model) -> None:
    cache = model.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    cache.keys[:], cache.values[:] = 3.0, 3.0
    levels = run(model, [(3, 0, 5)], cache, pad=11)
    for level in levels:
        assert level.shape == (16, model.hidden_size)
        assert not level[5:].any()
        assert level[:5].any(axis=1).all()
    written = np.zeros((NUM_BLOCKS, BLOCK_SIZE), bool)
    written[TABLES[3, 0], :5] = True
    assert (cache.keys[:, ~written] == 3.0).all()
    assert (cache.values[:, ~written] == 3.0).all()
    assert (cache.keys[:, written] != 3.0).all()


def test_a_step_without_tokens_gives_zeros(model: Model) -> None:
    empty = pack([(1, 0, np.zeros(0, np.int64))], pad=4)
    assert not model.forward(empty, model.new_cache(NUM_BLOCKS, BLOCK_SIZE)).any()


def test_torch_computes_the_same(model: Model) -> None:
    require("torch")
    import torch
    from examples.tiny_engine.torch_model import TorchModel

    class OnTorch:
        """Takes NumPy inputs to the torch model."""

        def __init__(self) -> None:
            self.model = TorchModel.load()

        def forward(self, inputs: Inputs, cache: Any) -> Any:
            return self.model.forward(Inputs(*map(torch.from_numpy, inputs)), cache)

        def draft_forward(self, head: int, inputs: Inputs, hidden: Any, cache: Any) -> Any:
            return self.model.draft_forward(head, Inputs(*map(torch.from_numpy, inputs)), hidden, cache)

    other = OnTorch()
    caches = model.new_cache(NUM_BLOCKS, BLOCK_SIZE), other.model.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    for rows in ([(2, 0, 20), (0, 0, 3)], [(3, 0, 9), (2, 20, 24), (0, 3, 4)]):
        for wanted, got in zip(run(model, rows, caches[0]), run(other, rows, caches[1]), strict=True):
            assert_close(np.asarray(got), wanted)
            assert_close(other.model.logits(torch.asarray(got)).numpy(), model.logits(wanted))
    assert_close(cells(caches[1], 2, 24), cells(caches[0], 2, 24))


def test_the_weights_file_is_small_and_float16() -> None:
    assert WEIGHTS.stat().st_size <= 3_000_000
    with np.load(WEIGHTS, allow_pickle=False) as file:
        assert {name: file[name].shape for name in file.files} == weight_shapes()
        assert {file[name].dtype for name in file.files} == {np.dtype(np.float16)}


def test_wrong_weights_are_named(tmp_path: Path, model: Model) -> None:
    weights: dict[str, Any] = dict(model.weights)
    weights["head1.joint"] = weights.pop("head1.join")
    np.savez(tmp_path / "other.npz", **weights)
    with pytest.raises(ValueError, match=r"\['head1.join', 'head1.joint'\]"):
        Model.load(tmp_path / "other.npz")


def test_a_row_without_blocks_is_refused(model: Model) -> None:
    ids = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="slot 2: 74 keys in blocks"):
        model.forward(pack([(2, 72, ids)]), model.new_cache(NUM_BLOCKS, BLOCK_SIZE))


@pytest.mark.parametrize("head", [0, 4])
def test_an_unknown_head_is_refused(model: Model, head: int) -> None:
    inputs = pack([(2, 0, np.zeros(1, np.int64))])
    with pytest.raises(ValueError, match="heads 1 to 3"):
        model.draft_forward(head, inputs, np.zeros((1, model.hidden_size), np.float32), model.new_cache(9, 8))
