"""What a run prints at the end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from samples import FACTS, METRICS, RESULTS, complete_run, metrics_for, predictions_of, sections

from dist_eval.errors import print_error
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.report.document import ReportOptions
from dist_eval.report.evaluation import ShownEvaluation
from dist_eval.report.markdown import render_markdown
from dist_eval.report.model_card import model_index
from dist_eval.report.page import format_run
from dist_eval.report.text import render_text
from dist_eval.results.inputs import DatasetSummary
from dist_eval.runs.reading import read_run
from dist_eval.statistics import metric_intervals


def table_of(folder: Path, metrics: Metrics = METRICS, **changes: Any) -> str:
    """Returns what is printed of a run with these results, as if it were in a folder."""
    if not (folder / RESULTS).exists():
        complete_run(folder)
    results = sections(metrics, **{"per_class": metrics.per_class, **changes})
    run = read_run(folder).model_copy(update=dict(results))
    return render_text(ShownEvaluation(run, folder).describe(ReportOptions()))


def line_of(table: str, start: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(start))


def test_the_table_contains_the_figures(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    for name in ("accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "mcc", "loss", "log_loss", "roc_auc"):
        digits = "#.4g" if "loss" in name else ".4f"
        assert line_of(table, name + " ").split()[1] == format(METRICS.values[name], digits)
    assert "\nAlways predicting the most frequent class would give an accuracy of 0.6000." in table
    assert re.findall(r"\d\.\d+(?= [\[(]|  )", line_of(table.partition("By class")[2], "neg ")) == [
        "0.6667",
        "1.0000",
        "0.8000",
    ]
    assert line_of(table.partition("By class")[2], "pos ").endswith(" 3")
    for average in ("macro", "micro", "weighted"):
        numbers = [f"{METRICS.values[f'{name}_{average}']:.4f}" for name in ("precision", "recall", "f1")]
        assert re.findall(r"\d\.\d+(?= [\[(]|  )", line_of(table, f"{average} ")) == numbers


def test_the_table_counts_all_kinds_of_confusion_and_shows_none_of_a_run_without_mistakes(tmp_path: Path) -> None:
    names = [f"class-{number}" for number in range(8)]
    labels, predictions = [number // 8 for number in range(64)], [number % 8 for number in range(64)]
    every = predictions_of(labels, predictions, 8)
    table = table_of(tmp_path, compute_metrics(every, names))
    assert f"\n{8 * 7 - 5} more are in results.json.\n" in table.partition("Most frequent confusions:")[2]
    right = predictions_of(labels, labels, 8)
    assert "confusions" not in table_of(tmp_path, compute_metrics(right, names))


def test_the_table_names_the_adapter(tmp_path: Path) -> None:
    assert "adapter" not in table_of(tmp_path)
    table = table_of(tmp_path, model={**dict(FACTS["model"]), "adapter": "org/lora"})
    assert "adapter: org/lora" in table.splitlines()


def test_the_table_shows_coverage_speed_and_files(tmp_path: Path) -> None:
    complete_run(tmp_path)
    table = format_run(tmp_path)
    assert "\n5 of 5 examples, each exactly once\n" in table
    assert "\n10.0 examples/s, 90 tokens/s on 1 rank\n" in table
    for name in (RESULTS, "predictions.parquet", "confusion_matrix.png"):
        assert str(tmp_path / name) in table


def test_the_table_shows_what_the_servers_computed_in_if_it_differed(tmp_path: Path) -> None:
    assert "servers computed" not in table_of(tmp_path)
    swarm = {**FACTS["swarm"], "precisions": ["bfloat16", "float16 (nf4)"]}
    table = table_of(tmp_path, swarm=swarm)
    assert "servers computed in bfloat16 and float16 (nf4): the figures depend on" in table


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"method": "random"},
            "rows: 1,000 of 67,349 rows, sampled with seed 7; the intervals are for all 67,349 rows",
        ),
        ({"method": "stratified"}, "rows: 1,000 of 67,349 rows, each class in its share, sampled with seed 7; the"),
        (
            {"method": "first", "seed": None},
            "rows: the first 1,000 of 67,349 rows; not a random sample, so the intervals do not apply to others",
        ),
    ],
)
def test_the_table_and_the_summaries_say_which_rows_were_evaluated(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    drawn = {"population": 67_349, "rows": 1000, "seed": 7, "precision": None, "column_digests": {}}
    data = {**FACTS["data"], "selection": {**drawn, **changes}}
    assert line_of(table_of(tmp_path, data=data), "rows: ").startswith(line)
    groups = {"column": "doc", "count": 50, "largest": 10}
    assert "; the intervals are for further groups of this kind" in table_of(tmp_path, data=data, groups=groups)
    complete_run(tmp_path / "run")
    run = read_run(tmp_path / "run")
    run = run.model_copy(update={"data": DatasetSummary.model_validate(data)})
    assert line in render_markdown(ShownEvaluation(run, tmp_path / "run").describe(ReportOptions()))
    assert f"({line.removeprefix('rows: ').partition(';')[0]})" in " ".join(model_index(run, "model").split())


def test_the_table_shows_the_number_of_truncated_texts(tmp_path: Path) -> None:
    table = table_of(tmp_path, data={**FACTS["data"], "truncated": 3}, ranks=FACTS["ranks"] * 2)
    assert "each exactly once; 3 texts cut to 64 tokens" in table
    assert "on 2 ranks" in table


def test_one_is_not_several(tmp_path: Path) -> None:
    ones = dict.fromkeys(("truncated", "multiline", "blank", "unknown", "normalized_labels"), 1)
    coverage = {**FACTS["coverage"], "expected": 1, "seen": 1}
    assert (
        "\n1 of 1 example, each exactly once; 1 text cut to 64 tokens; 1 text has several lines; 1 text has no "
        "token of its own; 1 text has no token that the tokenizer knows; 1 label normalized, "
    ) in table_of(tmp_path, data={**FACTS["data"], **ones}, coverage=coverage)


def test_the_table_shows_the_number_of_multiline_texts(tmp_path: Path) -> None:
    assert "lines" not in table_of(tmp_path)
    data = {**FACTS["data"], "multiline": 2}
    assert "each exactly once; 2 texts have several lines\n" in table_of(tmp_path, data=data)
    table = table_of(tmp_path, data={**data, "truncated": 3})
    assert "each exactly once; 3 texts cut to 64 tokens; 2 texts have several lines\n" in table


def test_the_table_shows_intervals_or_why_there_are_none(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    assert "[95% interval]" in table
    low, high = (FACTS["intervals"]["accuracy"][end] for end in ("low", "high"))
    assert f"{METRICS.values['accuracy']:.4f} [{low:.4f}, {high:.4f}]" in line_of(table, "accuracy ")
    perfect = predictions_of([0, 1] * 10, [0, 1] * 10, 2)
    metrics = compute_metrics(perfect, ["neg", "pos"])
    table = table_of(tmp_path, metrics, intervals=metric_intervals(perfect, metrics, confidence=0.9))
    assert line_of(table, "f1_macro ").endswith("1.0000 (1)")
    assert line_of(table, "(1) ").startswith("(1) nearly all resamples give the same value")


def test_the_table_shows_undefined_figures_as_a_dash_with_the_reason(tmp_path: Path) -> None:
    metrics = compute_metrics(predictions_of([1, 1, 1], [1, 1, 1], 2), ["neg", "pos"])
    table = table_of(tmp_path, metrics)
    number = line_of(table, "mcc ").removeprefix("mcc ").strip().removeprefix("- ")
    assert f"\n{number} {metrics.undefined['mcc']}\n" in table
    number = line_of(table, "roc_auc ").removeprefix("roc_auc ").strip().removeprefix("- ")
    assert f"\n{number} class 'neg' without examples\n" in table
    assert line_of(table, "neg ").split()[1:] == ["-", "-", "-", "0"]


def test_an_average_that_is_undefined_is_a_dash_with_its_reason_somewhere(tmp_path: Path) -> None:
    metrics = compute_metrics(predictions_of([0, 1, 2, 0], [0, 1, 1, 0], 3), ["a", "b", "c"])
    table = table_of(tmp_path, metrics)
    assert line_of(table, "macro ").split()[1] == "-"
    assert "class 'c' was never predicted" in table


def test_of_many_classes_the_table_shows_the_first(tmp_path: Path) -> None:
    table = table_of(tmp_path, metrics_for([f"class-{number}" for number in range(60)]))
    assert "class-29 " in table and "\nclass-30 " not in table
    assert "\n30 more are in results.json." in table


def test_an_error_goes_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("There is no file test.csv.")
    captured = capsys.readouterr()
    assert captured.err == "dist_eval: There is no file test.csv.\n"
    assert captured.out == ""


def test_the_table_shows_the_findings_of_an_audit(tmp_path: Path) -> None:
    audit = {
        "fraction": 0.1,
        "batches": 12,
        "alone": 1,
        "unanswered": 2,
        "largest_difference": 1.5e-6,
        "servers": [
            {"peer": "QmGood", "agreed": 9, "disagreed": 0, "odd": False},
            {"peer": "QmOdd", "agreed": 0, "disagreed": 1, "odd": True},
        ],
        "disputes": 0,
        "first_disputes": [],
    }
    lines = [line for line in table_of(tmp_path, audit=audit).splitlines() if "audit" in line]
    assert len(lines) == 2
    assert "12 batches" in lines[0] and "all agree" in lines[0] and "1.5e-06" in lines[0]
    assert "for 3 there was no other server" in lines[0]
    assert "QmOdd" in lines[1] and "QmGood" not in lines[1]
    dispute = {"peers": ["QmA", "QmB"], "blocks": [0, 2], "difference": 0.5, "why": "no third server"}
    disputed = {**audit, "servers": [], "disputes": 1, "first_disputes": [dispute]}
    lines = [line for line in table_of(tmp_path, audit=disputed).splitlines() if "audit" in line]
    assert "1 differ" in lines[0]
    assert "QmA" in lines[1] and "QmB" in lines[1] and "no third server" in lines[1]
    assert "audit" not in table_of(tmp_path)


def slice_of(value: str | None, kind: str = "value", n: int = 40, f1: float | None = None) -> dict[str, Any]:
    metrics = {"accuracy": 0.875, "f1_macro": f1}
    undefined = {"f1_macro": "no class"} if f1 is None else {}
    intervals = {
        "accuracy": {"confidence": 0.95, "low": 0.7, "high": 0.95, "method": "wilson"},
        "f1_macro": {"confidence": 0.95, "reason": "too few"},
    }
    figures = {"metrics": metrics, "undefined": undefined, "intervals": intervals}
    return {"by": "source", "kind": kind, "value": value, "low": None, "high": None, "n": n, **figures}


def test_the_table_shows_slices(tmp_path: Path) -> None:
    values = ["web", "", None, "two\nlines", "x" * 90]
    slices = [slice_of(value) for value in values] + [slice_of("tv", f1=0.5), slice_of("book", f1=0.25)]
    table = table_of(tmp_path, slices=slices)
    assert line_of(table, "source ").split() == ["source", "examples", "accuracy", "f1_macro"]
    assert line_of(table, "web ").split()[1:] == ["40", "0.8750", "[0.7000,", "0.9500]", "-", "(1)"]
    assert line_of(table, "tv ").endswith("  0.5000 (2)") and line_of(table, "book ").endswith("(2)")
    assert "\n(1) no class\n(2) too few\n" in table
    for shown in ("(empty) ", "(missing) ", "two lines ", "x" * 37 + "... "):
        assert line_of(table, shown)
    many = [slice_of(str(number)) for number in range(70)]
    assert "\n40 more are in results.json.\n" in table_of(tmp_path, slices=many)
    assert "By source" not in table_of(tmp_path, slices=[])


@pytest.mark.parametrize(("count", "warned"), [(7, True), (40, False)])
def test_the_table_mentions_groups_and_warns_if_there_are_few(tmp_path: Path, count: int, warned: bool) -> None:
    table = table_of(tmp_path, groups={"column": "doc", "count": count, "largest": 3})
    line = line_of(table, "intervals: ")
    assert line.startswith(f"intervals: {count} groups of 'doc' are resampled as clusters")
    assert ("with fewer than 20 there are none" in line) == warned
