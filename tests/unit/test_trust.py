"""Plugins that fail while they are in use, each an installed distribution (rules B1 to B3, W9, I1).

Each test runs in a child process, which sees the distributions that it names.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from plugged import PLUGINS, child

import slotline as sl

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


def test_b1_the_name_auto_is_reserved_too(tmp_path: Path) -> None:
    info = tmp_path / "choosy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: choosy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slotline.backends]\nAuto = nothing_here:Backend\n")
    found = child(
        "tell([[b.name, b.reason] for b in sl.list_backends()] + [sl.load_backend('auto').name])", str(tmp_path)
    )
    assert found[-1] == "cpu"
    assert "reserved" in dict(found[:-1])["auto"]


def test_b2_a_forked_child_can_still_use_its_device() -> None:
    found = child(
        """
sl.list_backends()
loaded = "like_a_driver" in sys.modules
reader, writer = os.pipe()
pid = os.fork()
if not pid:
    os.write(writer, sl.load_backend("likeadriver").name.encode())
    os._exit(0)
os.waitpid(pid, 0)
tell([loaded, os.read(reader, 100).decode()])
""",
        "like_a_driver",
    )
    assert found == [False, "likeadriver"]


def test_b3_a_process_that_a_probe_leaves_behind_is_ended_and_not_waited_for() -> None:
    start = time.monotonic()
    found = child(
        "tell([[b.usable, b.reason, dict(b.details)] for b in sl.list_backends() if b.name == 'leaves'])",
        "leaves_a_process",
    )
    assert time.monotonic() - start < 55  # the time limit of a probe is 60 s here
    ((usable, reason, details),) = found
    assert usable, reason
    for _ in range(100):
        if not _runs(int(details["process"])):
            return
        time.sleep(0.1)
    pytest.fail("the process that the probe started still runs")


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_every_distribution_stands_in_the_table_of_what_it_proves() -> None:
    told = (PLUGINS / "README.md").read_text()
    assert [p.name for p in PLUGINS.iterdir() if p.is_dir() and f"`{p.name}`" not in told] == []
