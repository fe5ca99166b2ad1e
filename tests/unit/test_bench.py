"""``slotline bench`` and the pages of ``--report``: what is told, not how fast it is."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from test_cli import one_line, refused, slotline

import slotline as sl
from slotline.bench.baselines import Writes, plain_copy
from slotline.bench.suites import GROUPS
from slotline.bench.timing import Case, Timed, measure
from slotline.bench.workload import Prompts, layout


def test_each_group_measures_against_its_baselines() -> None:
    done = slotline("bench", "--rounds", "3", "--only", "decoding, moves,writes", "--json")
    found = one_line(done)
    assert done.returncode == 0, done.stderr
    assert {"processor", "cores", "python", "numpy"} <= set(found["machine"])
    assert {row["group"] for row in found["results"]} == {"decoding", "moves", "writes"}
    for row in found["results"]:
        low, high = row["us_quartiles"]
        assert 0 < low <= row["us"] <= high
        assert any(key.startswith("ratio to ") for key in row)


def test_every_group_has_cases_that_run() -> None:
    """Each case once, whatever it costs; those of the scaling are made, the large ones are not run."""
    backend = sl.load_backend("cpu", framework="numpy")
    for name, group in GROUPS.items():
        seen = 0
        for case in group(backend):
            seen += 1
            assert case.group == name
            if name != "scaling":
                for timed in (case.own, *case.baselines):
                    if timed.before is not None:
                        timed.before()
                    timed.run()
        assert seen >= 3, name


def test_a_case_and_its_baselines_run_in_turn() -> None:
    order: list[str] = []
    own = Timed("own", lambda: order.append("own"), lambda: order.append("before"))
    result = measure(Case("g", "n", 4, own, [Timed("other", lambda: order.append("other"))]), 3)
    assert order == ["before", "own", "other"] * 4  # one round warms up
    told = result.as_dict()
    assert told["count"] == 4
    assert told["ratio to other"] > 0


def test_the_baselines_do_the_same_work() -> None:
    """The loop writes every cell of every field that a prefill writes; the copy touches every row byte."""
    batch = sl.SlotBatch(layout(max_model_len=256, max_chunk_tokens=128), sl.load_backend("cpu", framework="numpy"))
    sl.insert_tasks(batch, Prompts(4, 100).tasks())
    writes = Writes(batch, [0, 1, 2, 3])
    assert writes.fields > 25
    made: dict[str, np.ndarray] = {}
    buffer = writes._buffer
    writes._buffer = lambda framework, name: made.setdefault(name, buffer(framework, name))  # type: ignore[method-assign]
    writes.loop("numpy")()
    for name, array in made.items():
        assert array[:4].tolist() == batch.host_array(name)[:4].tolist(), name
    plain_copy(batch.layout, 4)()


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v and not v.startswith("#")]


def page(path: Path) -> _Links:
    parser = _Links()
    parser.feed(path.read_text("utf-8"))
    return parser


@pytest.mark.parametrize(
    ("args", "plots"),
    [
        (("bench", "--rounds", "3", "--only", "writes,decoding"), 1),
        (("replay", "--synthetic", "20", "--max-num-seqs", "8", "--max-model-len", "1024"), 3),
    ],
)
def test_reports_are_one_page_that_needs_nothing_else(args: tuple[str, ...], plots: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = slotline(*args, "--report", str(tmp_path / "page.html"), "--json")
    assert done.returncode == 0, done.stderr
    one_line(done)
    found = page(tmp_path / "page.html")
    assert found.found == []  # nothing is loaded from anywhere
    assert found.tags.count("svg") >= plots
    assert "script" not in found.tags


def test_bad_usage(tmp_path: Path) -> None:
    refused(slotline("bench", "--only", "insertions"), "did you mean 'insertion'")
    refused(slotline("bench", "--only", ","), "names no group")
    refused(slotline("bench", "--rounds", "1"), "--rounds")
    refused(slotline("bench", "--backend", "no_such"), "unknown backend")
    gone = str(tmp_path / "no" / "x.html")
    done = slotline("replay", "--synthetic", "3", "--max-model-len", "512", "--report", gone)
    assert done.returncode == 2
    assert "No such file" in done.stderr
