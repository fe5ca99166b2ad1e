"""The command line of the tiny engine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields

import slotline as sl
from examples.tiny_engine import compare, processes
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.messages import SplitError
from examples.tiny_engine.options import FRAMEWORKS, METHODS, Options
from examples.tiny_engine.results import Result
from examples.tiny_engine.split import serve

ROLES = ("mixed", "split", "prefill", "decode")
MOST = 2**31 - 1
PORTS = 65535


def between(lowest: int, highest: int) -> Callable[[str], int]:
    """A whole number for argparse."""

    def whole_number(text: str) -> int:
        value = int(text)
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{value} is out of range, allowed: {lowest} to {highest}")
        return value

    return whole_number


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m examples.tiny_engine",
        description="Serve prompts with a tiny byte-level model on slotline, or compare all modes.",
        epilog="Exit status: 0; 1 if an output differs from plain decoding; 2 for an error; 130 for Ctrl-C.",
    )
    default = Options()
    limits = default.batch_config()
    stops = f"at most {limits.max_stop_seqs}, each of 1 to {limits.stop_seqs_max_len} bytes"
    positive = between(1, MOST)
    what = made.add_argument_group("what to do")
    what.add_argument("--prompt", action="append", metavar="TEXT", help="continue TEXT; may be given several times")
    what.add_argument("--compare", action="store_true", help="the same prompts in every mode, and plain decoding")
    what.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    what.add_argument(
        "--max-tokens", type=positive, default=48, metavar="N", help="generated tokens at most (%(default)s)"
    )
    what.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help=f"end where TEXT is generated; {stops}"
    )
    what.add_argument("--num-prompts", type=positive, default=64, metavar="N", help="of --compare (%(default)s)")
    how = made.add_argument_group("how")
    how.add_argument("--framework", choices=FRAMEWORKS, default=default.framework, help="whose tensors (%(default)s)")
    how.add_argument("--spec-method", choices=METHODS, default=default.spec_method, help="drafts from (%(default)s)")
    how.add_argument(
        "--num-draft-tokens", type=int, default=default.num_draft_tokens, metavar="K", help="(%(default)s)"
    )
    how.add_argument("--mtp-levels", type=int, metavar="M", help="heads that are run (as many as drafts)")
    how.add_argument("--chunk", type=int, metavar="N", help="tokens of a prefill chunk (whole prompts)")
    for name, meaning in (
        ("max_num_seqs", "requests that run at once"),
        ("max_model_len", "tokens of prompt and output together"),
        ("block_size", "tokens of a KV-cache block"),
        ("num_blocks", "blocks of the KV cache"),
        ("token_budget", "tokens of one step at most"),
        ("condense_every", "steps after which rows close up; 0: never"),
    ):
        flag = "--" + name.replace("_", "-")
        how.add_argument(flag, type=int, default=getattr(default, name), metavar="N", help=f"{meaning} (%(default)s)")
    how.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=default.overlap,
        help="take a step's results when the next one has been launched",
    )  # fmt: skip
    where = made.add_argument_group("where")
    where.add_argument(
        "--role", choices=ROLES, default="mixed",
        help="one process (mixed); two of them (split), or one of the two: decode listens, prefill connects",
    )  # fmt: skip
    where.add_argument("--listen", type=between(0, PORTS), default=0, metavar="PORT", help="of role decode (any)")
    where.add_argument("--connect", type=between(1, PORTS), metavar="PORT", help="of role prefill")
    return made


def idle(args: argparse.Namespace) -> list[tuple[str, str]]:
    """The arguments that do nothing beside the others, and what it is that leaves them nothing to do."""
    found = []
    if args.role != "decode":
        found.append(("listen", f"--role {args.role}"))
    if args.role == "prefill":
        found += [(name, "--role prefill") for name in ("prompt", "compare", "json", "max_tokens", "stop")]
    if args.compare:
        names = ("role", "stop", "spec_method", "num_draft_tokens", "mtp_levels")
        found += [(name, "--compare") for name in names]
    else:
        found.append(("num_prompts", "anything but --compare"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    args = made.parse_args(arguments)
    if (args.role == "prefill") != (args.connect is not None):
        made.error("--role prefill and --connect PORT go together")
    if args.role != "prefill" and bool(args.prompt) == args.compare:
        made.error("give --prompt TEXT or --compare")
    for name, beside in idle(args):
        if getattr(args, name) != made.get_default(name):
            made.error(f"--{name.replace('_', '-')} does nothing with {beside}; leave it out")
    try:
        options = Options(**{f.name: getattr(args, f.name) for f in fields(Options) if f.name != "role"})
        if args.role == "prefill":
            processes.prefill(options, args.connect)
            return 0
        return run_compare(args, options) if args.compare else run_prompts(args, options)
    except (SplitError, ValueError, OSError, sl.SlotlineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"error: not enough memory for these sizes ({error})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run_compare(args: argparse.Namespace, options: Options) -> int:
    shown = sys.stderr if args.json else sys.stdout
    modes: list[compare.Mode] = []
    for mode in compare.compare(options, args.num_prompts, args.max_tokens):
        if not modes:
            print(compare.HEADER, file=shown)
        print(compare.line(mode, args.num_prompts), file=shown, flush=True)
        modes.append(mode)
    summary = compare.as_json(modes, options, args.num_prompts, args.max_tokens)
    if args.json:
        print(json.dumps(summary))
    return 0 if summary["equal"] else 1


def run_prompts(args: argparse.Namespace, options: Options) -> int:
    sampling = sl.SamplingParams(max_dec_len=args.max_tokens, stop_seqs=[list(os.fsencode(s)) for s in args.stop])
    prompts = [(f"prompt {i:03d}", os.fsencode(text)) for i, text in enumerate(args.prompt)]
    results: dict[str, Result]
    if args.role == "mixed":
        results = serve(Engine(options), prompts, sampling)
    else:
        with processes.start(options) if args.role == "split" else processes.listen(options, args.listen) as split:
            results = serve(split, prompts, sampling)
    for name, text in prompts:
        if results[name].finish_reason.startswith("refused"):
            raise ValueError(f"prompt {text!r}: {results[name].finish_reason}")
    found = [
        {
            "prompt": text.decode(errors="replace"),
            "output": results[name].output.decode(errors="replace"),
            "tokens": len(results[name].tokens),
            "prompt_token_ids": list(text),
            "token_ids": results[name].tokens,
            "finish_reason": results[name].finish_reason,
        }
        for name, text in prompts
    ]
    if args.json:
        print(json.dumps(found))
    else:
        for result in found:
            print(f"{result['prompt']}{result['output']}\n-- {result['tokens']} tokens, {result['finish_reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
