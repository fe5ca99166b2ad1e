"""The staging ring: a block is free when its event has passed, never before, and the bound holds (rules W4, W6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slotline.core.device import Event
from slotline.core.runtime import Copy, Runtime
from slotline.core.staging import ALIGNMENT, Block, StagingRing
from slotline.core.stats import Stats


class Memory(Runtime):
    """A runtime that only has host memory; it notes what the ring tells it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.allocated = 0

    def current_stream(self) -> int:
        return 0

    create_stream = create_event = current_stream

    def synchronize(self) -> None:
        pass

    def free(self, address: int) -> None:
        pass

    destroy_stream = destroy_event = sync_event = free_host = free  # type: ignore[assignment]

    def wait(self, stream: int, event: int) -> None:
        pass

    record = wait  # type: ignore[assignment]

    def is_capturing(self, stream: int) -> bool:
        return False

    def is_done(self, event: int) -> bool:
        return True

    def allocate(self, nbytes: int) -> int:
        raise AssertionError("the ring is host memory")

    allocate_host = allocate

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        raise AssertionError("the ring copies nothing")

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        raise AssertionError("the ring copies nothing")

    def host_written(self, address: int, nbytes: int) -> None:
        self.told.append("written")

    def released(self, address: int, nbytes: int) -> None:
        self.told.append("released")


class Later(Event):
    """An event that passes when the test says so, or when somebody waits for it."""

    def __init__(self) -> None:
        self.passed = self.waited = False

    @property
    def is_done(self) -> bool:
        return self.passed

    def sync(self) -> None:
        self.passed = self.waited = True


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(1, 12), st.lists(st.integers(0, 20), max_size=3)), max_size=60),
)
def test_w6_no_block_in_use_is_given_out_again(pages: int, calls: list[tuple[int, list[int]]]) -> None:
    """Whatever the order in which writes finish: blocks in use lie apart, inside the bound; waiting is the last way."""
    capacity, stats = pages * ALIGNMENT, Stats()
    ring = StagingRing(Memory(), capacity, pinned=False)
    used: list[tuple[Block, Later]] = []
    for size, finished in calls:
        for index in finished:
            if index < len(used):
                used[index][1].passed = True
        nbytes = min(size * ALIGNMENT - 5, capacity)
        waits = stats["staging_waits"]
        block = ring.acquire(nbytes, "write", stats)
        assert len(block.view) == nbytes
        waited = [b for b, event in used if event.waited]
        assert stats["staging_waits"] - waits == len(waited)
        if waited:  # only the oldest, and only since there was no room in one piece
            pending = [b for b, event in used if event.waited or not event.passed]
            assert waited == pending[: len(waited)]
        used = [(b, e) for b, e in used if not e.passed]
        for other, _ in used:
            assert block.stop <= other.offset or other.stop <= block.offset
        assert block.offset >= 0
        assert block.stop <= capacity
        event = Later()
        ring.hold(block, event)
        used.append((block, event))
        assert {id(b) for b, _ in used} <= {id(b) for b in ring._held}


def test_w6_a_wait_comes_only_when_the_memory_is_used_up() -> None:
    stats, runtime = Stats(), Memory()
    ring = StagingRing(runtime, 4 * ALIGNMENT, pinned=False)
    events = [Later() for _ in range(6)]
    for event in events[:4]:
        ring.hold(ring.acquire(ALIGNMENT, "write", stats), event)
    assert (stats["staging_waits"], ring.blocks) == (0, 4)
    events[0].passed = True
    ring.hold(ring.acquire(ALIGNMENT, "write", stats), events[4])
    assert stats["staging_waits"] == 0
    ring.hold(ring.acquire(ALIGNMENT, "write", stats), events[5])
    assert (stats["staging_waits"], events[1].waited, events[2].waited) == (1, True, False)
    for event in events:
        event.passed = True
    assert ring.blocks == 0
    assert runtime.told.count("written") == runtime.told.count("released") == 6


def test_w6_a_write_that_fails_gives_its_block_up() -> None:
    stats = Stats()
    ring = StagingRing(Memory(), 2 * ALIGNMENT, pinned=False)
    ring.give_up(ring.acquire(2 * ALIGNMENT, "write", stats))
    assert ring.acquire(2 * ALIGNMENT, "write", stats).offset == 0
    assert stats["staging_waits"] == 0
