"""Plugins whose class cannot be right, names, and what a probe leaves behind (rules B1 to B4, B7)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from test_trust import PLUGINS, child

import slotline as sl
from slotline.core.loading import interface_problem


class TestAtLoading:
    """B7: methods that cannot be what the interface says, named with their signature."""

    @pytest.mark.parametrize(
        ("members", "says"),
        [
            ({"vendor": 3}, "vendor is 3, needed: a name or None"),
            ({"__init__": lambda self: None}, "__init__(self) cannot be called as __init__(self, *, framework"),
            ({"rank": lambda self: 1}, "rank(self) cannot be called as rank("),
            ({"apply": lambda self, packet: None}, "apply(self, packet) cannot be called as apply(self, packet"),
            ({"read": lambda self, tensor, operation, stats: None}, "read(self, tensor, operation, stats) cannot"),
            ({"read": lambda self, tensor, *more, **named: None}, ""),
        ],
    )
    def test_b7_a_method_that_cannot_be_called(self, members: dict[str, Any], says: str) -> None:
        problem = self.problem(members)
        assert (says in problem) if says else not problem

    def test_b7_a_method_that_runs_later_or_never(self) -> None:
        async def write(self: Any, tensor: Any, offset: int, data: Any) -> None: ...

        def read(self: Any, tensor: Any, offset: int, nbytes: int) -> Any:
            yield b""

        assert "_write is a coroutine function, needed: a plain method _write(self" in self.problem({"_write": write})
        assert "_read is a generator, needed: a plain method _read(self" in self.problem({"_read": read})

    def test_b4_a_part_of_a_device_with_streams_that_is_something_else(self) -> None:
        from slotline.core.streamed import StreamedBackend

        sim: Any = sl.load_backend("sim")
        with pytest.raises(TypeError, match=r"SimBackend.start was given dict, needed: a subclass of .*DeviceTensors"):
            StreamedBackend.start(sim, sim.runtime, {}, sim.applier)  # type: ignore[arg-type]

    @staticmethod
    def problem(members: dict[str, Any]) -> str:
        from slotline.core.discovery import Plugin

        found = type("Mine", (type(sl.load_backend("cpu")),), {"name": "mine", **members})
        return interface_problem(Plugin("mine", "mine:Mine", "some-dist", "2.1"), found)


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
