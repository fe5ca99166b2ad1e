"""Trains the tiny model on the text of this repository: `python -m examples.tiny_engine.train` (needs torch and git).

`--evaluate` trains nothing: it prints the held-out loss and the acceptance rates of a weights file.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import torch
    from torch import Tensor
    from torch.nn.functional import cross_entropy
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    sys.exit(f"error: {error}; training needs torch: pip install -e '.[torch]' in the root of the clone")

from examples.tiny_engine.model import EOS, WEIGHTS, initial_weights, load_weights, rope_tables
from examples.tiny_engine.torch_model import Weights, dense_hidden, output_logits

SUFFIXES = (".py", ".md", ".toml")
WINDOW = 256
HEAD_LOSS = 0.3
PROMPT, CONTINUATION, PROMPTS = 64, 48, 64  # of the acceptance measured

Bytes = NDArray[np.int64]


def read_files(revision: str) -> tuple[list[Bytes], list[Bytes]]:
    """The text files of a git revision, each with EOS behind it: those to train on, and every tenth held out.

    Files are dealt out by a hash of their name, so a new file moves no other.
    """
    root = Path(__file__).parents[2]
    git = subprocess.run(["git", "archive", revision], cwd=root, capture_output=True)
    if git.returncode:
        raise SystemExit(
            f"no text at {revision!r}: {git.stderr.decode()}Name a git revision that this clone has; one made with "
            "--depth lacks the older ones: git fetch --unshallow"
        )
    parts: tuple[list[Bytes], list[Bytes]] = ([], [])
    with tarfile.open(fileobj=io.BytesIO(git.stdout)) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            file = tar.extractfile(member) if member.isreg() and member.name.endswith(SUFFIXES) else None
            if file is not None and (text := file.read()):
                held_out = hashlib.sha256(member.name.encode()).digest()[0] % 10 == 0
                parts[held_out].append(np.append(np.frombuffer(text, np.uint8).astype(np.int64), EOS))
    return parts


def losses(weights: Weights, ids: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross entropy (nats) of the target and of each head on windows [B, T]: [1 + heads]."""
    result = []
    for level, hidden in enumerate(dense_hidden(weights, ids, *rope)):
        logits = output_logits(weights, hidden[:, :-1])
        result.append(cross_entropy(logits.flatten(0, 1).float(), ids[:, level + 1 :].flatten()))
    return torch.stack(result)


def learning_rate(step: int, steps: int, top: float) -> float:
    """Warm-up over the first fiftieth, then a cosine down to a fiftieth."""
    warm = max(1, steps // 50)
    if step < warm:
        return top * (step + 1) / warm
    return top * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def save(weights: Weights, path: Path) -> None:
    """Writes the weights as float16."""
    arrays: dict[str, Any] = {name: tensor.detach().numpy().astype(np.float16) for name, tensor in weights.items()}
    np.savez(path, **arrays)


def train(args: argparse.Namespace) -> None:
    rope = rope_torch()
    weights = {n: torch.from_numpy(a).requires_grad_() for n, a in initial_weights(args.seed).items()}
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights.values() if w.ndim == 2], "weight_decay": args.weight_decay},
            {"params": [w for w in weights.values() if w.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    text = np.concatenate(read_files(args.revision)[0])
    losses_of = torch.compile(losses) if args.compile else losses
    rng, began = np.random.default_rng(args.seed), time.perf_counter()
    print(f"{sum(w.numel() for w in weights.values())} parameters, {len(text)} bytes of text, {args.steps} steps")
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.learning_rate)
        starts = rng.integers(0, len(text) - WINDOW, args.batch_size)
        ids = torch.from_numpy(text[starts[:, None] + np.arange(WINDOW)])
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bfloat16):
            loss = losses_of(weights, ids, rope)
        torch.autograd.backward(loss[0] + HEAD_LOSS * loss[1:].sum())
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == args.steps - 1:
            shown = " ".join(f"{x:.3f}" for x in loss.tolist())
            print(f"step {step}: loss {shown}, {time.perf_counter() - began:.0f} s", flush=True)
        if step % 250 == 249:
            save(weights, args.out)
    save(weights, args.out)


def rope_torch() -> tuple[Tensor, Tensor]:
    cos, sin = rope_tables()
    return torch.from_numpy(cos), torch.from_numpy(sin)


def evaluate(path: Path, revision: str) -> None:
    """Prints the held-out losses, and how often each head's draft is what greedy decoding gives."""
    weights = {name: torch.from_numpy(array) for name, array in load_weights(path).items()}
    held_out = read_files(revision)[1]
    rope, text = rope_torch(), np.concatenate(held_out)
    windows = torch.from_numpy(text[: len(text) // WINDOW * WINDOW].reshape(-1, WINDOW))
    sums = [losses(weights, part, rope) * len(part) for part in torch.split(windows, 16)]
    for level, loss in enumerate((torch.stack(sums).sum(0) / len(windows)).tolist()):
        print(f"{'target' if level == 0 else f'head {level}'}: held-out loss {loss:.3f} nats per byte")
    for level, (accepted, drafted) in enumerate(acceptance(weights, prompts(held_out), rope), start=1):
        print(f"draft {level}: accepted {accepted} of {drafted}, {accepted / drafted:.3f}")


def prompts(files: list[Bytes]) -> Tensor:
    """Prompts [PROMPTS, PROMPT] cut at even distances from files."""
    text = np.concatenate(files)
    starts = np.linspace(0, len(text) - PROMPT, PROMPTS).astype(int)
    return torch.from_numpy(text[starts[:, None] + np.arange(PROMPT)])


def acceptance(weights: Weights, ids: Tensor, rope: tuple[Tensor, Tensor]) -> list[tuple[int, int]]:
    """For each head (accepted, drafted) along the greedy continuations of prompts [R, T].

    Draft k counts as accepted if it and every draft before it equal greedy decoding's tokens.
    Up to there the heads have read greedy decoding's tokens, so one dense forward gives all drafts.
    """
    length = ids.shape[1]
    for _ in range(CONTINUATION):
        last = dense_hidden(weights, ids, *rope)[0][:, -1]
        ids = torch.cat([ids, output_logits(weights, last).argmax(-1, keepdim=True)], dim=1)
    ended = (ids[:, length:] == EOS).cumsum(1) > 0  # [R, CONTINUATION]; nothing counts from the end of text on
    result, good = [], torch.ones_like(ids, dtype=torch.bool)
    for level, hidden in enumerate(dense_hidden(weights, ids, *rope)[1:], start=1):
        # Cell i drafts the token at i + level + 1, in the step that sampled the one at i + 1.
        right = output_logits(weights, hidden[:, :-1]).argmax(-1) == ids[:, level + 1 :]
        good = good[:, : right.shape[1]] & right
        count = ~ended[:, level:]
        result.append((int((good[:, length - 1 :] & count).sum()), int(count.sum())))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--bfloat16", action="store_true", help="multiply matrices in bfloat16")
    parser.add_argument("--compile", action="store_true", help="torch.compile the loss (needs a C++ compiler)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--revision", default="HEAD", help="the git revision whose files are the text")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="the weights file")
    parser.add_argument("--evaluate", action="store_true", help="measure the weights file instead of training")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.evaluate:
        with torch.no_grad():
            evaluate(args.out, args.revision)
    else:
        train(args)


if __name__ == "__main__":
    main()
