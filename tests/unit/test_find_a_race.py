"""The example ``find_a_race`` shows what it says it shows."""

from __future__ import annotations

import pytest
from examples import find_a_race

from slotline.testing import simulate


def test_the_example_runs_and_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    find_a_race.main()
    alone, _, hidden, seen, *rest = [line for line in capsys.readouterr().out.split("\n")[2:] if line]
    assert "1 step in flight" in alone
    assert alone.endswith("  500 seeds, every step right")
    assert hidden.endswith("  500 seeds, every step right")  # a test with nothing late finds nothing
    assert "the scheduler sent [0, 1, 2, 3], the model read [200, 201, 202, 203]" in seen
    report = "\n".join(rest)
    assert "race on host buffer 'staging 0'" in report
    assert report.count("find_a_race.py") >= 4  # both stacks lead to the engine's own lines
    assert rest[-1].strip() == "500 seeds, every step right"


def test_the_ring_is_deep_enough_for_one_step_and_not_for_two() -> None:  # W6: no depth is trusted
    simulate(find_a_race.trusting(1), seeds=100)
    with pytest.raises(AssertionError, match="race on host buffer"):
        simulate(find_a_race.trusting(2), seeds=1)


def test_w4_slotline_takes_the_source_at_once() -> None:
    simulate(find_a_race.with_slotline, seeds=100)
