"""How the benchmarks compare: round by round, so that a slow minute of the machine is nobody's."""

from pathlib import Path

import pytest

import benchmarks.__main__ as benchmarking
from benchmarks.bars import Bar
from benchmarks.measure import NotMeasured, Run, figure, paired_ratio
from benchmarks.page import write_bars
from benchmarks.plan import QUICK, SECTIONS
from benchmarks.rates import Rate, middle, rate_of
from benchmarks.results import Results


def test_a_round_that_was_slow_for_both_changes_no_ratio() -> None:
    assert paired_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    assert paired_ratio([3.0, 2.0, 1.0], [1.0, 1.0, 1.0]) == 2.0


@pytest.mark.parametrize(("values", "floors"), [([], []), ([1.0], []), ([1.0, 2.0], [1.0])])
def test_rounds_that_are_missing_give_no_ratio(values: list[float], floors: list[float]) -> None:
    assert paired_ratio(values, floors) is None


def test_a_figure_keeps_what_each_round_said() -> None:
    found = figure([Run((0.001, 0.003, 0.002), 0.006), Run((0.004,), 0.004), Run((0.009,), 0.009)])
    assert (found.wall_ms, found.rounds_ms) == (4.0, (2.0, 4.0, 9.0))


def test_the_middle_of_rates_keeps_them_all() -> None:
    rates = [Rate(each, 1.0, (each,)) for each in (30.0, 10.0, 20.0)]
    assert middle(rates) == Rate(20.0, 1.0, (30.0, 10.0, 20.0))


def test_a_rate_counts_what_an_action_did_in_each_round() -> None:
    found = figure([Run((0.5,), 0.25), Run((0.25,), 0.25), Run((1.0,), 0.25)])
    assert rate_of(found, 100) == Rate(200.0, 2.5, (200.0, 400.0, 100.0))
    missing = NotMeasured("no disk")
    assert rate_of(missing, 100) is missing


def test_an_interrupted_run_keeps_what_it_measured_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(section: str, stages: object, results: Results, *_: object) -> None:
        if section == "append":
            raise KeyboardInterrupt
        results.settings[section] = "measured"

    monkeypatch.setattr(benchmarking, "measure", measure)
    results = benchmarking.run(set(SECTIONS), QUICK, (), tmp_path)
    assert results.cut_short
    assert list(results.settings) == ["load", "read", "verify", "fork"]
    assert "not measured" in benchmarking.shown(results)
    assert not benchmarking.run({"load"}, QUICK, (), tmp_path).cut_short


def test_a_run_writes_the_bars_that_it_measured_and_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "proofs.md"
    old = "| a | 1 x | at most 2 x | pass |\n| b | 1 x | at most 2 x | pass |"
    page.write_text(f"Before\n<!-- bars -->\n{old}\n<!-- /bars -->\nAfter\n")
    made = [Bar("b", 3.0, 2.0, "x"), Bar("c", None, 2.0, "x")]
    monkeypatch.setattr("benchmarks.page.bars", lambda _: made)
    results = benchmarking.run({"load"}, QUICK, (), tmp_path)
    write_bars(results, page)
    written = page.read_text()
    assert written.startswith("Before\n<!-- bars -->\nMachine of the last run: CPU: ")
    assert "| a | 1 x | at most 2 x | pass |\n| b | 3 x | at most 2 x | FAIL |" in written
    assert "| c " not in written
    assert written.endswith("<!-- /bars -->\nAfter\n")
    write_bars(results, page)
    assert page.read_text() == written
