"""The harness: options, ratios within a round, what stands in the table, and functions in processes of their own."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.contenders import Contender, Outcome, note_agreement, run_round
from benchmarks.harness import BenchmarkError, Program, Report
from benchmarks.processes import call, petals_python


def report(folder: Path, *, quick: bool = False, more_is_better: bool = True) -> Report:
    options = argparse.Namespace(output=folder, quick=quick)
    return Report("trial", "Which is faster?", unit="rows/s", options=options, more_is_better=more_is_better)


def fill(trial: Report) -> Report:
    for ours, first, second in ((10.0, 5.0, 4.0), (30.0, 10.0, 15.0), (8.0, 8.0, 2.0)):
        trial.add("near", "dist_eval", ours)
        trial.add("near", "a loop", first)
        trial.add("near", "another", second)
    return trial


def test_a_ratio_is_taken_within_a_round_to_the_best_of_the_others(tmp_path: Path) -> None:
    trial = fill(report(tmp_path))
    trial.compare("ours / theirs", ("near", "dist_eval"), ("near", "a loop"), ("near", "another"), bar=2.5)
    (comparison,) = trial.comparisons
    assert (comparison.ratio, comparison.lowest, comparison.highest, comparison.met) == (2.0, 1.0, 2.0, False)
    slower = fill(report(tmp_path, more_is_better=False))
    slower.compare("ours / theirs", ("near", "dist_eval"), ("near", "a loop"), ("near", "another"))
    assert slower.comparisons[0].ratio == 3.0


def test_who_was_left_out_is_not_compared_and_a_smoke_test_has_no_bar(tmp_path: Path) -> None:
    trial = fill(report(tmp_path, quick=True))
    trial.compare("ours / nobody's", ("near", "dist_eval"), ("near", "nobody"))
    trial.compare("ours / a loop's", ("near", "dist_eval"), ("near", "a loop"), ("near", "nobody"), bar=100)
    (comparison,) = trial.comparisons
    assert (comparison.claim, comparison.met) == ("ours / a loop's", None)


def test_a_report_is_a_table_a_file_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = fill(report(tmp_path / "new"))
    trial.compare("ours / a loop's", ("near", "dist_eval"), ("near", "a loop"), bar=1.5)
    trial.bound("seconds too many", [0.5], 0.1)
    trial.note("All on one machine.")
    trial.finish()
    printed = capsys.readouterr().out.splitlines()
    assert "  dist_eval          10  (8 to 30)" in printed
    assert "  ours / a loop's         2  (1 to 3)  at least 1.5: yes" in printed
    assert "  seconds too many      0.5  (0.5 to 0.5)  at most 0.1: NO" in printed
    assert "All on one machine." in printed
    content = json.loads((tmp_path / "new" / "trial.json").read_text())
    assert [series["median"] for series in content["series"]] == [10.0, 8.0, 4.0]
    assert [comparison["met"] for comparison in content["comparisons"]] == [True, False]
    assert (tmp_path / "new" / "trial.png").read_bytes().startswith(b"\x89PNG")


def test_options_have_the_types_of_their_defaults() -> None:
    program = Program("trial", "Which is faster?", lambda options, folder: None, rounds=5, rows=7)
    program.add("--ranks", (1, 4), "numbers of ranks")
    options = program.parser.parse_args(["--ranks", "2", "3", "--data", "folder"])
    assert (options.rounds, options.rows, options.ranks, options.data) == (5, 7, [2, 3], Path("folder"))
    assert program.parser.parse_args([]).ranks == (1, 4)


def test_answers_are_compared_with_those_of_the_first(tmp_path: Path) -> None:
    trial = report(tmp_path)
    contenders = [
        Contender("all", lambda: Outcome(2.0, [0.0, 1.0, 2.0, 3.0])),
        Contender("half", lambda: Outcome(0.5, [0.0, 2.1]), every=2),
        Contender("close", lambda: Outcome(1.0, [0.0, 1.0, 2.0005, 3.0], units=100)),
    ]
    run_round(trial, "near", contenders, tolerance=1e-3)
    assert [series.values for series in trial.series.values()] == [[2.0], [4.0], [100.0]]
    assert [series.details[0]["equal"] for series in trial.series.values()] == [1.0, 0.5, 1.0]
    note_agreement(trial, contenders)
    assert "all, except for half 0.5000" in trial.notes[0] and "half 1 in 2" in trial.notes[1]
    with pytest.raises(BenchmarkError, match="short gave 1 of 4 answers"):
        run_round(trial, "near", [contenders[0], Contender("short", lambda: Outcome(1.0, [0.0]))])


@pytest.mark.processes
def test_a_function_is_called_in_a_process_of_its_own(tmp_path: Path) -> None:
    (folder,) = call("os:fspath", tmp_path)  # which is given the private folder of that process
    assert not Path(folder).exists()
    with pytest.raises(BenchmarkError, match="has no attribute 'nothing'"):
        call("os:nothing", tmp_path)


def test_without_uv_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchmarkError, match=r"packages of benchmarks/petals-2\.2, which uv installs: pip install uv"):
        petals_python.__wrapped__()
