"""The split as two processes, what passes between them, and what happens when one of them fails."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from examples.tiny_engine import kv, messages, processes
from examples.tiny_engine.__main__ import main
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.messages import Frame, Reader, SplitError
from examples.tiny_engine.options import Options
from examples.tiny_engine.processes import SocketLink
from examples.tiny_engine.prompts import select
from examples.tiny_engine.results import Handed
from examples.tiny_engine.split import LocalLink, Split
from hypothesis import given
from hypothesis import strategies as st
from serving import Job, check_results, jobs, models

import slotline as sl

SMALL = Options(max_num_seqs=4, max_model_len=152, block_size=8, num_blocks=24)


@pytest.fixture(scope="module")
def work() -> list[Job]:
    model = models("numpy")
    return jobs(model, select(model, 8, 32))


@pytest.mark.parametrize(("method", "drafts"), [("none", 1), ("ngram", 2), ("mtp", 2)])
def test_two_processes_give_what_plain_decoding_gives(method: str, drafts: int, work: list[Job]) -> None:
    """D1 to D5: the KV cache crosses a socket; few blocks, so that some requests go back (D1)."""
    options = replace(SMALL, spec_method=method, num_draft_tokens=drafts, chunk=16)
    with processes.start(options, models("numpy")) as split:
        link = split.link
        assert isinstance(link, SocketLink)
        for job in work:
            split.add(job.request_id, job.prompt, job.sampling)
        split.abort("job 7")
        results = split.run()
    assert link.process is not None
    assert link.process.returncode == 0
    check_results(results, work, ["job 7"])


@pytest.mark.skipif(
    os.environ.get("SLOTLINE_HYPOTHESIS_PROFILE") != "thorough", reason="profile thorough only: two imports of each"
)
@pytest.mark.parametrize("framework", ["torch", "paddle"], indirect=True)
def test_two_processes_of_another_framework(framework: str, work: list[Job]) -> None:
    options = replace(SMALL, framework=framework, spec_method="mtp", num_draft_tokens=3, mtp_levels=2, num_blocks=64)
    with processes.start(options, models(framework)) as split:
        for job in work[:4]:
            split.add(job.request_id, job.prompt, job.sampling)
        results = split.run()
    check_results(results, work[:4])


def _serve(split: Split, work: list[Job]) -> None:
    for job in work:
        split.add(job.request_id, job.prompt, job.sampling)
        split.run()


def test_a_peer_that_dies_is_an_error_and_no_hang(work: list[Job]) -> None:
    with processes.start(SMALL, models("numpy")) as split:
        link = split.link
        assert isinstance(link, SocketLink)
        assert link.process is not None
        split.step()  # they meet
        link.process.kill()
        with pytest.raises(SplitError, match=r"gone.*ended with status -9"):
            _serve(split, work)
    assert link.process.returncode == -9


def test_two_processes_that_someone_started(work: list[Job]) -> None:
    """Role decode listens, role prefill connects."""
    prompt = work[0].prompt.decode()
    command = [sys.executable, "-m", "examples.tiny_engine", "--role", "decode", "--prompt", prompt, "--json"]
    root = Path(processes.__file__).parents[2]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--max-tokens", "9"], cwd=root, text=True, stdout=pipe, stderr=pipe) as decode:
        try:
            assert decode.stderr is not None
            said = decode.stderr.readline()
            assert said.startswith("waiting for: --role prefill --connect ")
            assert main(["--role", "prefill", "--connect", said.split()[-1]]) == 0
            stdout, stderr = decode.communicate(timeout=60)
        finally:
            decode.kill()
    assert (decode.returncode, stderr) == (0, "")
    (found,) = json.loads(stdout)
    assert found["output"].encode() == bytes(work[0].plain.tokens[:9])


def test_a_silent_peer_is_an_error() -> None:
    with socket.create_server((processes.HOST, 0)) as server, socket.create_connection(server.getsockname()) as here:
        link = SocketLink(here, timeout=0.01)
        with pytest.raises(SplitError, match=r"silent for 0\.01 s"):
            link.receive(wait=True)
        link.close()


def test_a_prefill_process_without_a_decode_side_says_so() -> None:
    with socket.create_server((processes.HOST, 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(SplitError, match="start the decode side first"):
        processes.prefill(SMALL, port)


@pytest.mark.parametrize("difference", [{"block_size": 16}, {"max_model_len": 160}])
def test_peers_with_other_layouts_are_refused_when_they_meet(difference: dict[str, int]) -> None:
    """D5"""
    model = models("numpy")
    link = LocalLink(replace(SMALL, num_blocks=64, **difference), model)  # type: ignore[arg-type]
    with pytest.raises(sl.LayoutError, match=next(iter(difference))):
        Split(SMALL, link, model)


def test_an_mtp_decode_side_needs_an_mtp_prefill_side() -> None:
    """D2"""
    model = models("numpy")
    with pytest.raises(sl.LayoutError, match="spec_method"):
        Split(replace(SMALL, spec_method="mtp"), LocalLink(SMALL, model), model)


def test_blocks_arrive_as_they_were_sent(work: list[Job]) -> None:
    """The KV cache of the heads too; sizes are checked."""
    model = models("numpy")
    options = replace(SMALL, spec_method="mtp", num_draft_tokens=3)
    prefill = Engine(replace(options, role="prefill"), model)
    prefill.add("a", work[1].prompt, work[1].sampling)
    while not prefill.handed:
        prefill.step()
    (handed,) = prefill.handed
    decode = Engine(replace(options, role="decode"), model)
    kv.write_blocks(decode.cache, [5, 3, 9, 1, 0, 2, 4, 6, 7, 8], handed.blocks)
    again = kv.read_blocks(decode.cache, [5, 3, 9, 1, 0, 2, 4, 6, 7, 8], len(work[1].prompt))
    assert again == handed.blocks
    assert len(again) == -(-len(work[1].prompt) // 8)
    for broken in (handed.blocks[:-1], [*handed.blocks[:-1], b"\0" * 7]):
        with pytest.raises(ValueError, match="needed"):
            decode.add_handed(Handed("a", 0, handed.record, broken))
    with pytest.raises(sl.PacketError):
        decode.add_handed(Handed("a", 0, handed.record[:-1], handed.blocks))
    assert not decode.has_work


@given(st.lists(st.tuples(st.sampled_from([bytes([k]) for k in messages.KINDS]), st.binary(max_size=40))), st.data())
def test_frames_survive_any_cut(sent: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    frames = [Frame(*pair) for pair in sent]
    stream = b"".join(frame.encode() for frame in frames)
    reader, read = Reader(), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        read += reader.feed(stream[:count])
        stream = stream[count:]
    assert read == frames
    assert not reader.is_within


@pytest.mark.parametrize("stream", [b"\0\0\0\0", b"\xff\xff\xff\xffP", b"\1\0\0\0?"])
def test_what_is_no_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(SplitError):
        Reader().feed(stream)


@given(st.sampled_from([bytes([k]) for k in messages.KINDS]), st.binary(max_size=60))
def test_hostile_frames_change_nothing(kind: bytes, body: bytes) -> None:
    """D5: whatever arrives, the error is clear and no request is made of it."""
    split = _met()
    with contextlib.suppress(SplitError, sl.PacketError, sl.LayoutError):
        split.take(Frame(kind, body))
    assert not split.engine.has_work


def _met() -> Split:
    if not _SPLITS:
        model = models("numpy")
        _SPLITS.append(Split(SMALL, LocalLink(SMALL, model), model))
        _SPLITS[0].step()
    return _SPLITS[0]


_SPLITS: list[Split] = []
