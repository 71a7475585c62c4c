"""A finished run is read as records; what is none is an error that names the file and the place in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import results_of
from samples import METRICS, PREDICTIONS, RESULTS, config_for, folder_of, sections

from dist_eval.errors import RunError
from dist_eval.results.work import RankTimeline, TimelineBins
from dist_eval.runs.reading import FinishedRun, read_results

BINS = TimelineBins(began=8.0, bin_seconds=0.5, busy=[1.0, 0.25], done=[0, 5], failed=[0, 0])
TIMELINE = RankTimeline(rank=0, host="here", batches=BINS, servers={"Qm": None})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = folder_of(config_for(tmp_path))
    run.open()
    run.save_timelines([TIMELINE])
    run.complete(PREDICTIONS, METRICS, sections())
    return tmp_path


def test_a_run_is_read_as_it_was_written(folder: Path) -> None:
    run = FinishedRun.load(folder)
    assert run.results.label_names == ["neg", "pos"]
    assert (run.results.metrics, run.timelines) == (METRICS.values, [TIMELINE])
    assert run.results.to_json() == results_of(folder)


def test_a_run_may_lack_a_timeline_but_not_have_a_broken_one(folder: Path) -> None:
    (folder / "timeline.json").write_text('{"ranks": [{"rank": 0}]}')
    with pytest.raises(RunError, match=r"timeline\.json cannot be read"):
        FinishedRun.load(folder)
    (folder / "timeline.json").unlink()
    assert FinishedRun.load(folder).timelines == []


def test_what_earlier_versions_did_not_write_is_unknown(folder: Path) -> None:
    results = results_of(folder)
    for part, name in ((results["data"], "is_path"), (results["model"], "base_is_path")):
        del part[name]
    for row in results["per_class"]:
        del row["intervals"]
    (folder / RESULTS).write_text(json.dumps(results))
    found = read_results(folder)
    assert (found.data.is_path, found.model.base_is_path) == (None, None)
    assert [row.intervals for row in found.per_class] == [None, None]
    (folder / RESULTS).unlink()  # or it would have to fit the schema


def test_what_does_not_fit_is_named(folder: Path) -> None:
    results = results_of(folder)
    results["coverage"]["seen"] = -1
    (folder / RESULTS).write_text(json.dumps(results))
    with pytest.raises(RunError, match=r"another format than this version writes \(coverage\.seen: .*\): run it again"):
        read_results(folder)
    (folder / RESULTS).unlink()  # or it would have to fit the schema
