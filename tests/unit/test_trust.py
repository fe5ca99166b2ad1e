"""Plugins that fail or answer wrongly while they are in use, each an installed distribution (rules B2 to B4, B7, W9).

Each test runs in a child process, which sees the distributions that it names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import slotline as sl

PLUGINS = Path(__file__).parents[1] / "plugins"

START = """
import json, os, sys
import numpy as np
import slotline as sl

config = sl.BatchConfig(max_num_seqs=4, max_model_len=16, max_chunk_tokens=8, block_size=4, num_blocks=64,
                        vocab_size=100, eos_token_ids=(2,), spec_method="ngram", num_draft_tokens=2)
layout = sl.target_layout(config).extend(
    sl.Field("seen", ("max_num_seqs",), "int32", -1, residency="mirrored", on={"prefill": sl.column("start")}))

def outcome(call):
    "What a call raises: class, words, and the classes of its cause."
    try:
        call()
    except Exception as error:
        cause = error.__cause__
        return [type(error).__name__, str(error), repr(cause)]
    return ["nothing", "", ""]

def prefill(name, slot=None):
    return sl.PrefillTask(sl.Request(name, [5, 6, 7]), 0, 3, [1], slot=slot)

def tell(value):
    print(json.dumps(value))
"""


def child(code: str, *plugins: str, **env: str) -> Any:
    """What ``code`` tells, in a process that sees ``plugins``."""
    path = os.pathsep.join(str(PLUGINS / p) for p in ("hostmem", *plugins))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTLINE_")}
    full = {**clean, "PYTHONPATH": path, "SLOTLINE_PROBE_TIMEOUT": "60", **env}
    command = [sys.executable, "-c", START + code]
    done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


MIDWAY = """
backend = sl.load_backend("midway")
batch, told = sl.SlotBatch(layout, backend), []
table = batch.side_table("notes", lambda request: request.request_id)
sl.insert_tasks(batch, [prefill("old")])
for watch in (batch.on_insert, batch.on_release):
    watch(lambda *what: told.append(what))

def host():
    "All that the host knows of the batch."
    return [[batch.owner(s) for s in range(4)], batch.epoch_of("old"), batch.launch_tokens,
            batch.mirror("seen").tolist(), [table[s] for s in range(4)], told]

def failing(call, after):
    backend.left = after
    said = outcome(call)
    backend.left = None
    return said
"""


class TestInTheMiddleOfARun:
    """W9 on a plugin whose hooks raise what they like; what the host knows is as before (I1)."""

    @pytest.mark.parametrize("after", [0, 1, 9])
    def test_w9_i1_an_insertion_that_fails_names_backend_and_operation_and_the_host_is_as_before(
        self, after: int
    ) -> None:
        found = child(
            f"""{MIDWAY}
before = json.dumps(host())
said = failing(lambda: sl.insert_tasks(batch, [sl.AbortTask("old"), prefill("new"), prefill("other")]), {after})
same = json.dumps(host()) == before
sl.insert_tasks(batch, [sl.AbortTask("old"), prefill("new"), prefill("other")])
fresh = sl.SlotBatch(layout, sl.load_backend("cpu"))
sl.insert_tasks(fresh, [prefill("old")])
sl.insert_tasks(fresh, [sl.AbortTask("old"), prefill("new"), prefill("other")])
tell([said, same, batch.digest() == fresh.digest(), told])
""",
            "fails_midway",
        )
        (kind, text, cause), same, again, told = found
        assert kind == "DeviceError"
        assert text == "midway: insert failed: RuntimeError: queue 7 is lost"
        assert cause == "RuntimeError('queue 7 is lost')"
        assert same
        assert again  # the same call once more has the same result as if nothing had failed
        assert [what[0] for what in told] == ["old", "new", "other"]

    def test_s6_a_reset_after_a_failure_equals_a_new_batch(self) -> None:
        found = child(
            f"""{MIDWAY}
failing(lambda: sl.insert_tasks(batch, [prefill("new")]), 5)
said = failing(batch.reset, 5)
owner = batch.owner(0)
batch.reset()
tell([said, owner, batch.digest() == sl.SlotBatch(layout, sl.load_backend("cpu")).digest(), told])
""",
            "fails_midway",
        )
        (kind, text, _), owner, fresh, told = found
        assert kind == "DeviceError"
        assert text == "midway: launch failed: RuntimeError: queue 7 is lost"
        assert owner == "old"  # a reset that failed can be called again
        assert fresh
        assert told == [["old", 0]]

    def test_w9_every_call_says_what_the_device_was_doing(self) -> None:
        found = child(
            f"""{MIDWAY}
zeros = np.zeros((4, config.num_drafts + 1), np.int32)
step, said = batch.ticket(), {{}}
said["commit_step"] = failing(lambda: sl.commit_step(batch, step, zeros + 9, [1, 0, 0, 0]), 0)
state = step.state
sl.commit_step(batch, step, zeros + 9, [1, 0, 0, 0])
said["commit_drafts"] = failing(lambda: sl.commit_drafts(batch, step, zeros[:, 1:]), 0)
said["fetch"] = failing(lambda: batch.fetch(step), 0)
tokens = batch.fetch(step).result()[0].tokens
said["prepare_step"] = failing(lambda: sl.prepare_step(batch), 0)
said["swap"] = failing(lambda: batch.swap(0, 1), 0)
said["digest"] = failing(batch.digest, 0)
said["new"] = failing(lambda: sl.SlotBatch(layout, backend), 0)
said["async_set_value"] = failing(lambda: sl.async_set_value(batch["seq_lens_this_time"], 1), 0)
tell([said, state, tokens, batch.owner(0)])
""",
            "fails_midway",
        )
        said, state, tokens, owner = found
        doing = {
            "commit_step": "allocate",  # step functions on a device without a namespace: memory for their results first
            "commit_drafts": "allocate",
            "fetch": "fetch",
            "prepare_step": "allocate",
            "swap": "launch",
            "digest": "read",
            "new": "allocate",
            "async_set_value": "async_set_value",
        }
        assert {call: text for call, (_, text, _) in said.items()} == {
            call: f"midway: {operation} failed: RuntimeError: queue 7 is lost" for call, operation in doing.items()
        }
        assert {kind for kind, _, _ in said.values()} == {"DeviceError"}
        assert {cause for _, _, cause in said.values()} == {"RuntimeError('queue 7 is lost')"}
        assert state == "open"  # it can be committed, or discarded, once the device is back
        assert tokens == [9]
        assert owner == "old"

    def test_w9_a_device_error_keeps_its_number(self) -> None:
        found = child(
            f"""{MIDWAY}
backend.error = sl.DeviceError("midway", "launch", 700, "illegal address")
said = failing(lambda: sl.insert_tasks(batch, [prefill("new")]), 0)
tell([said, backend.error.code])
""",
            "fails_midway",
        )
        assert found == [["DeviceError", "midway: launch failed with 700 (illegal address)", "None"], 700]

    @pytest.mark.parametrize("part", ["applier.run", "runtime.copy", "runtime.record"])
    def test_w9_i1_a_part_of_a_device_with_streams_that_fails(self, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
        config = sl.BatchConfig(
            max_num_seqs=4, max_model_len=16, max_chunk_tokens=8, block_size=4, vocab_size=100, eos_token_ids=(2,)
        )
        sim: Any = sl.load_backend("sim")
        batch = sl.SlotBatch(sl.target_layout(config), sim)
        task = sl.PrefillTask(sl.Request("a", [5, 6, 7]), 0, 3, [1])

        def lost(*_args: Any) -> None:
            raise OSError("the card fell off the bus")

        before = batch.digest()
        with monkeypatch.context() as patch:
            owner, method = part.split(".")
            patch.setattr(getattr(sim, owner), method, lost)
            with pytest.raises(
                sl.DeviceError, match="sim: insert failed: OSError: the card fell off the bus"
            ) as caught:
                sl.insert_tasks(batch, [task])
        assert isinstance(caught.value.__cause__, OSError)
        assert batch.occupied == []
        assert batch.digest() == before or part == "runtime.record"  # the apply was queued already
        sl.insert_tasks(batch, [task])
        batch.reset()
        sim.synchronize()
        assert (sim.retained, batch.digest()) == (0, before)

    def test_b7_a_plugin_that_cannot_say_whose_a_tensor_is_takes_no_other_down(self) -> None:
        found = child(
            """
broken, good = sl.load_backend("wronganswers"), sl.load_backend("cpu")
type(broken).wrong = {"_inspect": (4,)}
sl.async_set_value(good.empty([("x", (4,), "int32")])["x"], 3)
tell(outcome(lambda: sl.async_set_value(object(), 3)))
""",
            "wrong_answers",
        )
        assert found[0] == "DeviceError"
        assert "Backend._inspect returned tuple" in found[1]


class TestWrongAnswers:
    """B7 at run time: what a hook gives back is checked; the error names the method and what was needed."""

    @pytest.mark.parametrize(
        ("hook", "wrong", "call", "says"),
        [
            ("_allocate", "[]", "new", "returned 0 tensors, needed: a list of"),
            ("_allocate", "iter(())", "new", "returned tuple_iterator, needed: a list of"),
            ("_inspect", "(4,)", "new", "returned tuple, needed: a slotline.TensorInfo, or None"),
            ("_inspect", "info(shape=[4])", "new", "a TensorInfo with shape [4], needed: a tuple of whole numbers"),
            ("_inspect", "info(dtype='i4')", "new", "with dtype 'i4', needed: one of bool"),
            ("_inspect", "info(strides=(1, 2))", "new", "1 axes and 2 strides, needed: a stride for each axis"),
            ("_inspect", "info(pointer=None)", "new", "with pointer None, needed: a whole number"),
            ("_read", "b'ab'", "read", "returned 2 bytes, needed: "),
            ("_read", "[1, 2]", "read", "returned list, needed: "),
            ("_set", "None", "write", "returned NoneType, needed: a slotline.Event"),
            ("_apply", "None", "insert", "returned NoneType, needed: a slotline.Event"),
            ("_launch", "7", "insert_and_step", "returned int, needed: a slotline.Event"),
            ("_download", "np.zeros(3)", "fetch", "returned ndarray, needed: a slotline.Download"),
        ],
    )
    def test_b7_an_answer_of_a_wrong_type(self, hook: str, wrong: str, call: str, says: str) -> None:
        kind, text, _ = child(
            f"""
def info(**changes):
    right = dict(shape=(4,), strides=(4,), dtype="int32", place="here", pointer=64)
    return sl.TensorInfo(**{{**right, **changes}})

backend = sl.load_backend("wronganswers")
batch = sl.SlotBatch(layout, backend)
calls = {{
    "new": lambda: sl.SlotBatch(layout, backend),
    "read": lambda: backend.read(batch["top_k"]),
    "write": lambda: backend.async_set_value(batch["top_k"], 1),
    "insert": lambda: sl.insert_tasks(batch, [prefill("a")]),
    "insert_and_step": lambda: (sl.insert_tasks(batch, [prefill("a")]), sl.prepare_step(batch)),
    "fetch": lambda: backend.download(batch["top_k"]),
}}
type(backend).wrong = {{{hook!r}: {wrong}}}
tell(outcome(calls[{call!r}]))
""",
            "wrong_answers",
        )
        assert kind == "DeviceError"
        assert text.startswith("wronganswers: ")
        assert f"Backend.{hook} returned " in text
        assert says in text

    def test_b3_b4_a_probe_that_answers_with_a_truth_value(self) -> None:
        said = child("tell(outcome(lambda: sl.load_backend('wrongprobe')))", "wrong_probe")
        assert said[0] == "BackendUnavailable"
        for part in ("wrong-probe 1.0", "Backend._probe returned bool, needed: slotline.Probe"):
            assert part in said[1]
        row = child("tell([b.reason for b in sl.list_backends() if b.name == 'wrongprobe'])", "wrong_probe")
        assert "_probe returned bool" in row[0]

    def test_b5_a_rank_that_is_no_number_is_a_verdict_and_auto_goes_on(self) -> None:
        code = "import warnings; warnings.simplefilter('ignore')\n"
        found = child(f"{code}tell([sl.load_backend().name, [b.reason for b in sl.list_backends()]])", "odd_rank")
        assert found[0] == "cpu"
        assert any("Backend.rank returned 'high', needed: a whole number or None" in reason for reason in found[1])

    def test_b4_an_object_whose_base_class_never_began(self) -> None:
        said = child("tell(outcome(lambda: sl.load_backend('forgetsinit')))", "forgets_init")
        assert said[0] == "BrokenPlugin"
        assert "forgets-init 1.0: Backend.__init__ must call super().__init__(**options) first" in said[1]
