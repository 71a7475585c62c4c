"""A run's folder: a true `results.json` at all times, and files and a table that can be read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import image

from dist_eval.config import EvaluationConfig
from dist_eval.errors import RunError
from dist_eval.metrics import Metrics, compute_metrics
from dist_eval.predictions import Predictions
from dist_eval.report import (
    SCHEMA_VERSION,
    RunFolder,
    draw_confusion_matrix,
    format_results,
    print_error,
    write_atomically,
    write_predictions,
)

PEER_ID = "QmVQE44noRKH2ZZoC8HKSJEsyAvYqAMpmRVPkKsyXn7g3a"
PEER = f"/ip4/10.0.0.5/tcp/31337/p2p/{PEER_ID}"
RESULTS = "results.json"


def config_for(folder: Path, **options: Any) -> EvaluationConfig:
    options = {"dataset": "test.csv", "checkpoint": "tuned", "initial_peers": [PEER], **options}
    return EvaluationConfig(output=str(folder), **options)


def predictions_of(labels: list[int], guesses: list[int], classes: int) -> Predictions:
    logits = np.random.default_rng(0).uniform(-1, 1, size=(len(labels), classes))
    logits[np.arange(len(labels)), guesses] += 2
    return Predictions.from_logits(np.arange(len(labels)), np.asarray(labels), logits)


def metrics_for(names: list[str]) -> Metrics:
    """Metrics of three examples a class, most of them right."""
    labels = np.arange(3 * len(names)) % len(names)
    guesses = np.where(np.arange(len(labels)) % 5 == 0, 0, labels)
    return compute_metrics(predictions_of(labels.tolist(), guesses.tolist(), len(names)), names)


PREDICTIONS = predictions_of([0, 1, 1, 0, 1], [0, 1, 0, 0, 1], 2)
METRICS = compute_metrics(PREDICTIONS, ["neg", "pos"])
FACTS: dict[str, Any] = {
    "coverage": {"expected": 5, "seen": 5, "duplicates": 0, "missing": 0, "failed": 0},
    "data": {
        "source": "test.csv",
        "examples": 5,
        "truncated": 0,
        "longest": 9,
        "multiline": 0,
        "max_length": 64,
        "digest": "d",
    },
    "model": {"base": "some/base"},
    "plan": {"batches": 2},
    "ranks": [
        {"rank": 0, "host": "here", "batches": 2, "samples": 5, "tokens": 45, "padded_tokens": 50, "seconds": 0.5}
    ],
    "throughput": {"seconds": 0.5, "examples_per_second": 10.0, "tokens_per_second": 90.0},
    "swarm": {"dht_prefix": "base-hf", "num_blocks": 4, "missing_blocks": [], "replicas_per_block": [1], "servers": []},
}


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / RESULTS).read_text(encoding="utf-8"))


def complete_run(folder: Path, **options: Any) -> RunFolder:
    run = RunFolder(config_for(folder, **options))
    run.open()
    run.complete(PREDICTIONS, METRICS, FACTS)
    return run


def test_a_run_that_starts_is_running(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "new"
    RunFolder(config_for(folder, in_flight=7)).open()
    found = results(folder)
    assert found["schema_version"] == SCHEMA_VERSION
    assert (found["status"], found["error"], found["finished"]) == ("running", None, None)
    assert found["config"]["in_flight"] == 7
    assert "metrics" not in found


def test_times_are_in_utc(tmp_path: Path) -> None:
    complete_run(tmp_path)
    started, finished = (datetime.fromisoformat(results(tmp_path)[name]) for name in ("started", "finished"))
    assert started <= finished <= datetime.now(timezone.utc)
    assert (datetime.now(timezone.utc) - started).total_seconds() < 60


def test_a_complete_run_holds_all_sections(tmp_path: Path) -> None:
    complete_run(tmp_path)
    found = results(tmp_path)
    assert (found["status"], found["error"]) == ("complete", None)
    assert found["metrics"] == METRICS.values
    assert found["per_class"] == METRICS.per_class
    assert found["majority_share"] == METRICS.majority_share
    assert found["confusion_matrix"] == {"labels": ["neg", "pos"], "matrix": [[2, 0], [1, 2]]}
    assert {name: found[name] for name in FACTS} == FACTS
    assert {path.name for path in tmp_path.iterdir()} == {RESULTS, "predictions.parquet", "confusion_matrix.png"}


def test_an_undefined_figure_is_null_with_its_reason(tmp_path: Path) -> None:
    predictions = predictions_of([1, 1, 1], [1, 1, 1], 2)
    run = RunFolder(config_for(tmp_path))
    run.open()
    run.complete(predictions, compute_metrics(predictions, ["neg", "pos"]), FACTS)
    assert results(tmp_path)["metrics"]["roc_auc"] is None
    assert results(tmp_path)["undefined"]["roc_auc"] == "class 'neg' without examples"
    assert results(tmp_path)["per_class"][0]["precision"] is None


def test_the_environment_names_the_versions_a_result_depends_on(tmp_path: Path) -> None:
    RunFolder(config_for(tmp_path)).open()
    packages = results(tmp_path)["environment"]["packages"]
    for name in ("petals", "hivemind", "torch", "transformers", "scikit-learn"):
        assert packages[name] == metadata.version(name)


def test_a_complete_run_is_not_replaced_by_accident(tmp_path: Path) -> None:
    complete_run(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunError) as caught:
        RunFolder(config_for(tmp_path)).open()
    assert str(tmp_path) in str(caught.value)
    assert "--output" in str(caught.value)
    assert "--overwrite" in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_complete_run_is_replaced_on_request_with_nothing_of_it_left(tmp_path: Path) -> None:
    complete_run(tmp_path)
    RunFolder(config_for(tmp_path, overwrite=True)).open()
    assert results(tmp_path)["status"] == "running"
    assert [path.name for path in tmp_path.iterdir()] == [RESULTS]


@pytest.mark.parametrize("content", ['{"status": "running"}', '{"status": "failed"}', "{", "[]", ""])
def test_a_run_that_is_not_complete_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / RESULTS).write_text(content)
    RunFolder(config_for(tmp_path)).open()
    assert results(tmp_path)["status"] == "running"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(RunError, match=r"output folder .*file/run cannot be written: Not a directory"):
        RunFolder(config_for(tmp_path / "file" / "run")).open()
    with pytest.raises(RunError, match=r"output folder .*file cannot be written"):
        RunFolder(config_for(tmp_path / "file")).open()


def test_a_failed_run_says_why_and_where(tmp_path: Path) -> None:
    run = RunFolder(config_for(tmp_path))
    run.open()
    started = results(tmp_path)["started"]
    run.fail("Row 7 has no text.", rank=3, host="node-5")
    found = results(tmp_path)
    assert found["status"] == "failed"
    assert found["error"] == {"message": "Row 7 has no text.", "rank": 3, "host": "node-5"}
    assert found["started"] == started
    assert found["finished"] is not None
    assert found["config"]["dataset"] == "test.csv"


def test_a_lack_of_coverage_is_written_with_its_counts(tmp_path: Path) -> None:
    counts = {"expected": 6, "seen": 3, "duplicates": 1, "missing": 3, "failed": 0}
    run = RunFolder(config_for(tmp_path))
    run.open()
    run.fail("The predictions do not cover the dataset's 6 rows.", rank=0, host="here", coverage=counts)
    assert results(tmp_path)["status"] == "failed"
    assert results(tmp_path)["coverage"] == counts


@pytest.mark.parametrize("options", [{}, {"coverage": None}])
def test_another_failure_says_nothing_of_coverage(tmp_path: Path, options: dict[str, Any]) -> None:
    run = RunFolder(config_for(tmp_path))
    run.open()
    run.fail("gone", rank=0, host="here", **options)
    assert "coverage" not in results(tmp_path)


def test_another_rank_can_report_the_failure(tmp_path: Path) -> None:
    RunFolder(config_for(tmp_path)).open()
    RunFolder(config_for(tmp_path)).fail("gone", rank=1, host="b")
    assert results(tmp_path)["error"]["rank"] == 1


def test_the_first_failure_stands(tmp_path: Path) -> None:
    run = RunFolder(config_for(tmp_path))
    run.open()
    run.fail("first", rank=1, host="a")
    run.fail("second", rank=2, host="b")
    assert results(tmp_path)["error"]["message"] == "first"


def test_a_failure_does_not_touch_a_complete_run(tmp_path: Path) -> None:
    complete_run(tmp_path)
    before = (tmp_path / RESULTS).read_bytes()
    RunFolder(config_for(tmp_path)).fail("holds a complete run", rank=0, host="here")
    assert (tmp_path / RESULTS).read_bytes() == before


def test_a_failure_before_the_folder_exists_makes_none(tmp_path: Path) -> None:
    RunFolder(config_for(tmp_path / "run")).fail("too early", rank=0, host="here")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, object()])
def test_what_is_no_json_leaves_the_last_true_file(tmp_path: Path, value: Any) -> None:
    run = RunFolder(config_for(tmp_path))
    run.open()
    with pytest.raises((ValueError, TypeError)):
        run.complete(PREDICTIONS, METRICS, {**FACTS, "plan": value})
    assert results(tmp_path)["status"] == "running"
    run.fail("no JSON", rank=0, host="here")
    assert results(tmp_path)["status"] == "failed"


def test_results_are_complete_before_the_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def draw(path: Path, metrics: Metrics) -> None:
        assert path == tmp_path / "confusion_matrix.png"
        assert metrics is METRICS
        seen.append(results(tmp_path))

    monkeypatch.setattr("dist_eval.report.draw_confusion_matrix", draw)
    complete_run(tmp_path)
    assert [found["status"] for found in seen] == ["complete"]
    assert seen == [results(tmp_path)]
    assert (tmp_path / "predictions.parquet").exists()


@pytest.mark.parametrize("error", [RuntimeError("no font"), OSError(28, "No space left on device"), MemoryError()])
def test_a_picture_that_cannot_be_drawn_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def draw(*_: Any) -> None:
        raise error

    monkeypatch.setattr("dist_eval.report.draw_confusion_matrix", draw)
    complete_run(tmp_path)

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"dist_eval: confusion_matrix.png could not be drawn ({error!r})")
    assert captured.err.count("\n") == 1
    assert results(tmp_path)["status"] == "complete"
    assert results(tmp_path)["metrics"] == METRICS.values
    assert {path.name for path in tmp_path.iterdir()} == {RESULTS, "predictions.parquet"}


def test_a_run_that_is_stopped_while_the_picture_is_drawn_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dist_eval.report.draw_confusion_matrix", draw)
    with pytest.raises(KeyboardInterrupt):
        complete_run(tmp_path)
    RunFolder(config_for(tmp_path)).fail("interrupted before the end", rank=0, host="here")
    assert results(tmp_path)["status"] == "complete"


def everything_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def assert_no_peer_is_named(folder: Path) -> None:
    for secret in (PEER_ID, "10.0.0.5", "31337"):
        assert secret.encode() not in everything_below(folder)


def test_peer_addresses_are_counted_and_not_written(tmp_path: Path) -> None:
    complete_run(tmp_path)
    assert results(tmp_path)["config"]["initial_peers"] == "1 addresses, not recorded"
    assert_no_peer_is_named(tmp_path)


def test_peer_addresses_are_not_written_when_they_are_the_reason_of_a_failure(tmp_path: Path) -> None:
    run = RunFolder(config_for(tmp_path))
    run.open()
    run.fail(f"None of the swarm's peers answered within 60 s: {PEER}. Is it running?", rank=0, host="here")
    assert "None of the swarm's peers answered within 60 s" in results(tmp_path)["error"]["message"]
    assert_no_peer_is_named(tmp_path)


OTHER_ID = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def error_after(folder: Path, message: str, **options: Any) -> str:
    """Returns what results.json says of a failure."""
    run = RunFolder(config_for(folder, **options))
    run.open()
    run.fail(message, rank=0, host="here")
    assert results(folder)["status"] == "failed"
    return results(folder)["error"]["message"]


def test_of_several_peers_none_is_written(tmp_path: Path) -> None:
    other = f"/dns4/swarm.example.org/tcp/31338/p2p/{OTHER_ID}"
    message = error_after(tmp_path, f"None answered: {PEER}, {other}. Is it running?", initial_peers=[PEER, other])
    assert message.startswith("None answered: ")
    assert message.endswith(". Is it running?")
    assert_no_peer_is_named(tmp_path)
    for secret in (OTHER_ID, "swarm.example.org", "31338"):
        assert secret.encode() not in everything_below(tmp_path)


@pytest.mark.parametrize("identity", [OTHER_ID, "12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"])
@pytest.mark.parametrize("form", ["/p2p/{}", "/ip4/127.0.0.1/tcp/1/p2p/{}", "[/dns/a.b/tcp/1/p2p/{}]"])
def test_the_identity_of_a_peer_that_was_not_named_in_the_options_is_not_written(
    tmp_path: Path, form: str, identity: str
) -> None:
    message = error_after(tmp_path, f"Lost {form.format(identity)}: timed out", initial_peers=[], swarm="embedded")
    assert identity not in message
    assert message.startswith("Lost ")
    assert message.endswith(": timed out")


def test_an_identity_that_stands_alone_is_not_written(tmp_path: Path) -> None:
    hivemind = f"Failed to call handler `TransformerConnectionHandler.rpc_forward` at {PEER_ID}: stream reset"
    message = error_after(tmp_path, f"Batch 4 (test.csv, rows 1, 2) got no answer: {hivemind}")
    assert "rpc_forward" in message
    assert "stream reset" in message
    assert_no_peer_is_named(tmp_path)


def watch(path: Path, change: Callable[[], None]) -> list[bytes]:
    """Reads a file again and again while it is changed; returns all that was seen."""
    seen: list[bytes] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            content = path.read_bytes()
            if not seen or content != seen[-1]:
                seen.append(content)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        change()
    finally:
        ended.set()
        reader.join()
    return seen


def test_whoever_looks_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    contents = [bytes([letter]) * 2_000_000 for letter in b"abcdefgh"]
    write_atomically(tmp_path / "file", contents[0])

    def change() -> None:
        for content in contents * 5:
            write_atomically(tmp_path / "file", content)

    seen = watch(tmp_path / "file", change)
    assert len(seen) > 3
    assert set(seen) <= set(contents)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_results_are_valid_json_whenever_someone_looks(tmp_path: Path) -> None:
    RunFolder(config_for(tmp_path)).open()

    def change() -> None:
        for number in range(15):
            run = RunFolder(config_for(tmp_path, overwrite=True, dht_prefix="x" * 5000 * (number % 3)))
            run.open()
            run.fail("gone", rank=0, host="here")
        complete_run(tmp_path, overwrite=True)

    statuses = [json.loads(content)["status"] for content in watch(tmp_path / RESULTS, change)]
    assert set(statuses) <= {"running", "failed", "complete"}
    assert len(statuses) > 3
    assert results(tmp_path)["status"] == "complete"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "file", b"old")

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("rows", "classes"), [(0, 2), (1, 2), (7, 5), (9000, 60)])
def test_predictions_are_readable_by_pandas(tmp_path: Path, rows: int, classes: int) -> None:
    labels = [row % classes for row in range(rows)]
    predictions = predictions_of(labels, labels[::-1], classes)
    write_predictions(tmp_path / "p.parquet", predictions)

    table = pd.read_parquet(tmp_path / "p.parquet")

    assert list(table.columns) == ["index", "label", "prediction", "loss", "probabilities"]
    assert table["index"].tolist() == list(range(rows))
    assert table["label"].tolist() == labels
    assert table["prediction"].tolist() == labels[::-1]
    assert table["loss"].tolist() == predictions.loss.tolist()
    assert [row.tolist() for row in table["probabilities"]] == predictions.probabilities.tolist()


def test_equal_predictions_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_predictions(tmp_path / name, predictions_of([0, 1, 2] * 500, [0, 2, 1] * 500, 3))
    write_predictions(tmp_path / "other", predictions_of([0, 1, 2] * 500, [0, 2, 2] * 500, 3))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()


@pytest.mark.parametrize("classes", [2, 10, 60])
def test_the_confusion_matrix_is_a_picture(tmp_path: Path, classes: int) -> None:
    draw_confusion_matrix(tmp_path / "m.png", metrics_for([f"class {number}" for number in range(classes)]))
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG\r\n")
    pixels = image.imread(tmp_path / "m.png")
    assert min(pixels.shape[:2]) >= 400
    assert len(np.unique(pixels[::5, ::5, 0])) > 10


@pytest.mark.parametrize(
    "names",
    [["$5 to $10", "$^$"], [r"cost: $\bad$", "b"], ["", " "], ["x" * 200, "y"], ["two\nlines", "a_b{c}%"]],
    ids=["dollars", "formula", "empty", "long", "symbols"],
)
@pytest.mark.filterwarnings("ignore:constrained_layout")
def test_class_names_of_any_kind_can_be_drawn(tmp_path: Path, names: list[str]) -> None:
    draw_confusion_matrix(tmp_path / "m.png", metrics_for(names))
    assert image.imread(tmp_path / "m.png").size > 0


def line_of(table: str, start: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(start))


def test_the_table_contains_the_figures(tmp_path: Path) -> None:
    table = format_results(METRICS, FACTS, tmp_path)
    for name in ("accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "mcc", "loss", "log_loss", "roc_auc"):
        assert line_of(table, name + " ").split()[1] == f"{METRICS.values[name]:.4f}"
    assert "(always guessing the most frequent class: 0.6000)" in line_of(table, "accuracy ")
    assert line_of(table, "neg ").split()[1:] == ["0.6667", "1.0000", "0.8000", "2"]
    assert line_of(table, "pos ").split()[1:] == ["1.0000", "0.6667", "0.8000", "3"]
    for average in ("macro", "micro", "weighted"):
        figures = [f"{METRICS.values[f'{name}_{average}']:.4f}" for name in ("precision", "recall", "f1")]
        assert line_of(table, f"{average} avg").split()[2:] == [*figures, "5"]


def test_the_table_tells_coverage_speed_and_files(tmp_path: Path) -> None:
    table = format_results(METRICS, FACTS, tmp_path)
    assert "coverage: 5 of 5 examples, each exactly once\n" in table
    assert "speed: 10.0 examples/s, 90 tokens/s on 1 rank\n" in table
    for name in (RESULTS, "predictions.parquet", "confusion_matrix.png"):
        assert str(tmp_path / name) in table


def test_the_table_tells_how_many_texts_were_cut(tmp_path: Path) -> None:
    facts = {**FACTS, "data": {**FACTS["data"], "truncated": 3}, "ranks": FACTS["ranks"] * 2}
    table = format_results(METRICS, facts, tmp_path)
    assert "each exactly once; 3 texts cut to 64 tokens" in table
    assert "on 2 ranks" in table


def test_the_table_tells_how_many_texts_have_several_lines(tmp_path: Path) -> None:
    assert "lines" not in format_results(METRICS, FACTS, tmp_path)
    facts = {**FACTS, "data": {**FACTS["data"], "multiline": 2}}
    assert "each exactly once; 2 texts have several lines\n" in format_results(METRICS, facts, tmp_path)
    facts["data"]["truncated"] = 3
    table = format_results(METRICS, facts, tmp_path)
    assert "each exactly once; 3 texts cut to 64 tokens; 2 texts have several lines\n" in table


def test_the_table_shows_undefined_figures_as_a_dash_with_the_reason(tmp_path: Path) -> None:
    metrics = compute_metrics(predictions_of([1, 1, 1], [1, 1, 1], 2), ["neg", "pos"])
    table = format_results(metrics, FACTS, tmp_path)
    assert line_of(table, "mcc ").split(maxsplit=2)[1:] == ["-", f"({metrics.undefined['mcc']})"]
    assert line_of(table, "roc_auc ").split(maxsplit=2)[1:] == ["-", "(class 'neg' without examples)"]
    assert line_of(table, "neg ").split()[1:] == ["-", "-", "-", "0"]


def test_an_average_that_is_undefined_is_a_dash_with_its_reason_somewhere(tmp_path: Path) -> None:
    metrics = compute_metrics(predictions_of([0, 1, 2, 0], [0, 1, 1, 0], 3), ["a", "b", "c"])
    table = format_results(metrics, FACTS, tmp_path)
    assert line_of(table, "macro avg").split()[2] == "-"
    assert "class 'c' was never predicted" in table


def test_of_many_classes_the_table_shows_the_first(tmp_path: Path) -> None:
    table = format_results(metrics_for([f"class-{number}" for number in range(60)]), FACTS, tmp_path)
    assert "class-39 " in table
    assert "class-40 " not in table
    assert "... and 20 more classes in results.json" in table


def test_the_columns_of_the_table_are_aligned(tmp_path: Path) -> None:
    table = format_results(metrics_for(["a", "a rather long name of a class", "b"]), FACTS, tmp_path)
    header = line_of(table, "class ")
    rows = [line_of(table, start) for start in ("a ", "a rather", "b ", "macro avg", "weighted avg")]
    assert {len(row) for row in rows} == {len(header)}


def test_an_error_goes_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("There is no file test.csv.")
    captured = capsys.readouterr()
    assert captured.err == "dist_eval: There is no file test.csv.\n"
    assert captured.out == ""
