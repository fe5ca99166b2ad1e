"""The command line of the tiny engine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields

import slotline as sl
from examples.tiny_engine import compare, processes
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.messages import SplitError
from examples.tiny_engine.options import FRAMEWORKS, METHODS, Options
from examples.tiny_engine.results import Result
from examples.tiny_engine.split import serve

ROLES = ("mixed", "split", "prefill", "decode")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m examples.tiny_engine",
        description="Serve prompts with a tiny byte-level model on slotline, or compare all modes.",
        epilog="Exit status: 0; 1 if an output differs from plain decoding; 2 for an error.",
    )
    default = Options()
    what = made.add_argument_group("what to do")
    what.add_argument("--prompt", action="append", metavar="TEXT", help="continue TEXT; may be given several times")
    what.add_argument("--compare", action="store_true", help="the same prompts in every mode, and plain decoding")
    what.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    what.add_argument("--max-tokens", type=int, default=48, metavar="N", help="generated tokens at most (%(default)s)")
    what.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end where TEXT is generated")
    what.add_argument("--num-prompts", type=int, default=64, metavar="N", help="of --compare (%(default)s)")
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
    where.add_argument("--listen", type=int, default=0, metavar="PORT", help="of role decode (any that is free)")
    where.add_argument("--connect", type=int, metavar="PORT", help="of role prefill")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    args = made.parse_args(arguments)
    if (args.role == "prefill") != (args.connect is not None):
        made.error("--role prefill and --connect PORT go together")
    if args.role != "prefill" and bool(args.prompt) == args.compare:
        made.error("give --prompt TEXT or --compare")
    if min(args.max_tokens, args.num_prompts) < 1:
        made.error("--max-tokens and --num-prompts: at least 1")
    if args.compare and args.role != "mixed":
        made.error("--compare runs every method in one process and in two; leave --role out")
    try:
        options = Options(**{f.name: getattr(args, f.name) for f in fields(Options) if f.name != "role"})
        if args.role == "prefill":
            processes.prefill(options, args.connect)
            return 0
        return run_compare(args, options) if args.compare else run_prompts(args, options)
    except (SplitError, ValueError, OSError, sl.SlotlineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


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
    sampling = sl.SamplingParams(max_dec_len=args.max_tokens, stop_seqs=[list(s.encode()) for s in args.stop])
    prompts = [(f"prompt {i:03d}", text.encode()) for i, text in enumerate(args.prompt)]
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
