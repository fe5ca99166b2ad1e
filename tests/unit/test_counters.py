"""``assert_no_sync`` (rule O)."""

from __future__ import annotations

import pytest

import slotline as sl
from slotline.testing.counters import assert_no_sync
from slotline.testing.fixtures import assert_no_sync as as_fixture  # noqa: F401  (pytest finds it here)


class Counted:
    def __init__(self) -> None:
        self.stats = sl.Stats()


def test_o_what_waits_is_named_with_its_operation() -> None:
    thing = Counted()
    thing.stats.add("host_synchronisations", "before")
    with assert_no_sync(thing):
        thing.stats.add("transfers", "insert")
    for counter in ("host_synchronisations", "staging_waits", "device_to_host"):
        with pytest.raises(AssertionError, match=rf"{counter} 2 \(by digest\)"), assert_no_sync(Counted(), thing):
            thing.stats.add(counter, "digest", 2)


def test_o_a_fetch_may_be_allowed() -> None:
    thing = Counted()
    with assert_no_sync(thing, device_to_host=True):
        thing.stats.add("device_to_host", "fetch")


def test_o_a_batch_counts_with_its_backend() -> None:
    config = sl.BatchConfig(
        max_num_seqs=2,
        max_model_len=8,
        max_chunk_tokens=4,
        block_size=4,
        num_blocks=8,
        vocab_size=9,
        eos_token_ids=(2,),
    )
    batch = sl.SlotBatch(sl.target_layout(config), sl.load_backend("cpu"))
    with assert_no_sync(batch):
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])])
    with pytest.raises(AssertionError, match="by probe"), assert_no_sync(batch):
        batch.backend.stats.add("device_to_host", "probe")


def test_o_nothing_to_count_is_an_error() -> None:
    with pytest.raises(TypeError, match="pass the batch"), assert_no_sync():
        pass


def test_o_it_is_a_fixture_too(request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue("assert_no_sync") is assert_no_sync


def test_the_face_has_the_testing_tools_when_they_are_asked_for() -> None:
    assert sl.testing.assert_no_sync is assert_no_sync
    with pytest.raises(AttributeError, match="no attribute 'testin'"):
        sl.testin  # type: ignore[attr-defined]  # noqa: B018
