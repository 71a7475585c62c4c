"""Whole runs from a program: `run` and `run_tasks`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import psutil
import pytest
from conftest import TIMEOUT, Launcher, results_of, wait_for

import dist_eval
from dist_eval import demo
from dist_eval.errors import ConfigError, DataError, RunError, RunStopped
from dist_eval.options.config import EVALUATION, EvaluationConfig
from dist_eval.options.harness import HarnessConfig
from dist_eval.results.run import CompleteRun

OPTIONS: dict[str, Any] = {"model": demo.BASE_MODEL, "checkpoint": demo.CHECKPOINT, "backend": "local"}
FRAME = pandas.read_csv(demo.TEST_DATA)[:40]


def state() -> tuple[Any, ...]:
    """What a call might change in its process."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    return handlers, dict(os.environ), threading.active_count(), psutil.Process().children()


@pytest.mark.usefixtures("preloaded_ranks")
def test_a_frame_is_evaluated_resumed_and_refused_once_it_changes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, options = state(), {**OPTIONS, "output": tmp_path / "out"}
    results = dist_eval.run(options, dataset=FRAME, ranks=2)
    assert isinstance(results, CompleteRun)
    assert [rank.samples > 0 for rank in results.ranks] == [True, True]
    assert json.loads(results.model_dump_json()) == results_of(results.folder)
    assert results.folder == tmp_path / "out"
    assert results.metrics["accuracy"] > 0.9
    assert "accuracy" in str(results)
    assert "<table>" in results._repr_html_()
    named = "data in memory (40 rows with the columns text, label)"
    assert (results.config["dataset"], results.data.source, results.data.is_path) == (named, named, False)
    assert results.data.shards is None
    out, err = capfd.readouterr()
    assert out == ""
    assert [line for line in err.splitlines() if " evaluating: " not in line] == []
    assert state() == before

    again = dist_eval.run(options, dataset=FRAME.to_dict("records"))
    assert again.finished == results.finished, "the rows are the same"
    with pytest.raises(RunError, match="Choose another `output`, or start afresh with `overwrite`"):
        dist_eval.run(options, dataset=FRAME[::-1])
    assert state() == before


@pytest.mark.usefixtures("preloaded_ranks")
@pytest.mark.parametrize(
    ("ranks", "changes", "said"),
    [
        (1, {"label_column": "class"}, "DataFrame has no column 'class'. It has: text, label."),
        (2, {}, "DataFrame, row 0 (counted from 0): the label in column 'label' is 'x'"),
    ],
)
def test_a_rank_s_error_is_raised_once_and_names_the_row(
    ranks: int, changes: dict[str, Any], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = FRAME.assign(label=["x", *FRAME.label[1:].astype(str)])
    with pytest.raises(DataError) as caught:
        dist_eval.run(OPTIONS, dataset=wrong, output=tmp_path / "out", ranks=ranks, **changes)
    assert str(caught.value).startswith(said)
    recorded = results_of(tmp_path / "out")
    assert recorded["status"] == "failed" and recorded["error"]["message"].startswith(said)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (None, {}, "`dataset` is missing: the data to evaluate on. (`demo` needs no other option.)"),
        ({"limit": "many"}, {}, "dist_eval.run: limit must be a whole number, not 'many'."),
        ({"on-error": "skp"}, {}, "dist_eval.run: on_error must be one of stop, skip, not 'skp'."),
        (
            None,
            {"demo": True, "confidence": 3.0},
            "dist_eval.run: confidence must be more than 0 and less than 1, such as 0.95, not 3.0.",
        ),
        (None, {"demo": True, "ranks": 0}, "dist_eval.run: ranks must be an integer of at least 1, not 0."),
        (
            HarnessConfig(tasks=["x"], model="x", backend="local"),
            {},
            "dist_eval.run takes options by name, a mapping of them or EvaluationConfig, not HarnessConfig.",
        ),
        (OPTIONS, {"dataset": []}, "dist_eval.run: dataset takes names of files, a data frame,"),
        (OPTIONS, {"dataset": {"text": ["a"], "label": [0]}}, "dist_eval.run: dataset takes names of files,"),
        (OPTIONS, {"ranks": "2"}, "dist_eval.run: ranks must be an integer of at least 1, not '2'."),
    ],
)
def test_wrong_options_are_found_before_a_process_starts(config: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dist_eval.run(config, **options)
    assert str(caught.value).startswith(said)


def test_wrong_rows_are_found_before_a_process_starts() -> None:
    with pytest.raises(DataError, match=r"^list, row 1 \(counted from 0\): must be a mapping with columns, not 5\."):
        dist_eval.run(OPTIONS, dataset=[{"text": "a", "label": 0}, 5])


def test_ranks_of_torchrun_are_told_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"call it without torchrun, or call dist_eval\.evaluate"):
        dist_eval.run(demo=True)


@pytest.mark.parametrize("kind", ["options", "mapping", "config"])
def test_options_arrive_as_they_were_given(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is replaced by one that shows what it was given."""
    from dist_eval.arguments.commandline import parse_args

    given = {**OPTIONS, "prompt": None, "text_column": ("text",), "metric": ["a:b"], "output": tmp_path, "limit": 3}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    expected = EvaluationConfig(**{**plain, "text_column": ["text"], "dataset": "ä\n.csv"})
    seen: list[Any] = []

    def execute(arguments: list[str], scratch_dir: Path) -> tuple[int, str]:
        seen.append((arguments, parse_args([f"--config={scratch_dir / 'options.yaml'}"], EVALUATION)))
        return 1, "no run"

    monkeypatch.setattr(sys.modules[dist_eval.run.__module__], "_execute", execute)
    config = {"options": None, "mapping": {"metric": ["c:d"], **given}, "config": expected}[kind]
    options = {"dataset": "ä\n.csv", **(given if kind == "options" else {})}
    with pytest.raises(RunError, match="no run"):
        dist_eval.run(config, ranks=3, **options)
    assert seen == [(["run", "--nproc-per-node=3"], expected)]


def test_a_bar_is_shown_on_a_terminal_and_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shows_bars = sys.modules[dist_eval.run.__module__]._shows_bars
    assert not shows_bars()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    assert shows_bars()


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_ranks")
def test_tasks_are_evaluated_with_the_harness_own_names_of_options(tmp_path: Path) -> None:
    results = dist_eval.run_tasks(
        tasks=["digits"], model=demo.BASE_MODEL, backend="local", samples={"digits": (0, 3)}, output=tmp_path, ranks=2
    )
    assert results.tasks["digits"].documents == 2
    assert "digits/acc" in str(results)
    assert results.config["samples"] == {"digits": [0, 3]}


WAITING = f"""
import sys
import dist_eval
dist_eval.run(
    dataset="{demo.TEST_DATA}", checkpoint="{demo.CHECKPOINT}", model="{demo.BASE_MODEL}", swarm="embedded",
    max_tokens_per_second=2000, output=sys.argv[1], ranks=2,
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_an_interrupted_or_killed_program(number: int, launcher: Launcher, tmp_path: Path) -> None:
    program = launcher.start("-c", WAITING, str(tmp_path / "out"))
    assert wait_for(lambda: any((tmp_path / "out").glob("journal/*.batches")))
    program.send_signal(number)
    _, err = program.communicate(timeout=TIMEOUT)
    assert program.returncode == -number
    assert not launcher.leftovers()
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
        assert results_of(tmp_path / "out")["status"] == "incomplete"


@pytest.mark.slow
def test_a_run_that_somebody_stops_says_how_far_it_is(tmp_path: Path) -> None:
    stopping = threading.Thread(
        target=lambda: wait_for(lambda: any(tmp_path.glob("journal/*.batches"))) and (tmp_path / "STOP").touch()
    )
    stopping.start()
    with pytest.raises(RunStopped) as caught:
        dist_eval.run(demo=True, max_tokens_per_second=2000, output=tmp_path, ranks=2)
    stopping.join()
    assert 0 < caught.value.coverage.seen < 596
