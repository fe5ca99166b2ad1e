"""The content of KV-cache blocks as bytes, one piece for each block: all layers' keys, then values (the heads' too)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPE = np.dtype("<f4")


def block_bytes(cache: Any) -> int:
    """Bytes of one block: 2 * layers * block_size * heads * head_dim numbers."""
    return 2 * int(_block(cache.keys, 0).size) * DTYPE.itemsize


def read_blocks(cache: Any, blocks: Sequence[int], tokens: int) -> list[bytes]:
    """The first of ``blocks``, as many as hold ``tokens`` tokens."""
    used = blocks[: -(-tokens // cache.block_size)]
    return [np.stack([_block(cache.keys, b), _block(cache.values, b)]).astype(DTYPE).tobytes() for b in used]


def write_blocks(cache: Any, blocks: Sequence[int], pieces: Sequence[bytes]) -> None:
    """Put ``pieces`` into the first of ``blocks``."""
    for block, piece in zip(blocks, pieces, strict=False):
        parts = np.frombuffer(piece, DTYPE).reshape(2, *_block(cache.keys, block).shape)
        for place, part in zip((cache.keys, cache.values), parts, strict=True):
            _block(place, block)[...] = part


def check_blocks(cache: Any, pieces: Sequence[bytes], tokens: int) -> None:
    """``ValueError`` unless ``pieces`` are the blocks of ``tokens`` tokens for this cache, of finite numbers."""
    number, size = -(-tokens // cache.block_size), block_bytes(cache)
    if len(pieces) != number or any(len(p) != size for p in pieces):
        got = sorted({len(p) for p in pieces})
        raise ValueError(f"{len(pieces)} blocks of {got} bytes for {tokens} tokens, needed: {number} of {size} bytes")
    for index, piece in enumerate(pieces):
        if not np.isfinite(np.frombuffer(piece, DTYPE)).all():
            raise ValueError(f"block {index} of {number} holds NaN or infinity, needed: finite numbers")


def _block(tensor: Any, block: int) -> NDArray[Any]:
    """One block of all layers [layers, block_size, heads, head_dim], a view; torch's memory too."""
    return np.asarray(tensor[:, block])
