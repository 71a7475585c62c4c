"""A finished run as a program shows it: options, summaries, metadata, trackers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import results_of, scalars_in

from dist_eval.report.__main__ import main
from dist_eval.report.document import Document, Number, ReportOptions, Section, Table
from dist_eval.report.evaluation import ShownEvaluation
from dist_eval.report.markdown import code, render_markdown
from dist_eval.results.run import CompleteRun


def test_the_page_is_written_where_it_is_asked_for(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(runs["single"]), "--output", str(tmp_path / "page.html"), "--max-mistakes", "2"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "The first 2 are in this file" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["NOWHERE"], 1, "has no results.json"),
        (["RUN", "--texts"], 1, "There is no file test.csv."),
        (["RUN", "--output", "NOWHERE/page.html"], 1, "cannot be written"),
        (["RUN", "--tracker", "wandb"], 2, "--tracker wandb needs the package wandb, which is not installed."),
    ],
)
def test_failures_are_reported(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    options: list[str], status: int, words: str,
) -> None:  # fmt: skip
    places = {"RUN": str(runs["single"]), "NOWHERE": str(tmp_path / "nowhere")}
    named = [next((option.replace(a, b) for a, b in places.items() if a in option), option) for option in options]
    assert main(named) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--dataset", "x"], ["--max-mistakes", "-1"], ["another/run"], ["--markdown", "--model-index"]]
)
def test_options_that_contradict_each_other_are_refused(runs: dict[str, Path], options: list[str]) -> None:
    assert main([str(runs["single"]), *options]) == 2


@pytest.mark.parametrize("kind", ["single", "multi", "regression"])
def test_the_summary_has_the_figures_and_their_intervals(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    assert main([str(runs[kind]), "--markdown"]) == 0
    printed, results = capsys.readouterr().out, results_of(runs[kind])
    name = "r2" if kind == "regression" else "f1_macro"
    interval = results["intervals"][name]
    assert f"| `{name}` | {results['metrics'][name]:.4f} [{interval['low']:.4f}, {interval['high']:.4f}] |" in printed
    tables = [block.splitlines() for block in printed.split("\n\n") if block.startswith("|")]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    row = results["per_class"][0]
    first = next(name for name in row if name != "label")
    ends, form = row["intervals"][first], "#.4g" if kind == "regression" else ".4f"
    words = f"{row[first]:{form}} [{ends['low']:{form}}, {ends['high']:{form}}]"
    assert f"| `{row['label']}` | {words} |" in printed
    if kind == "regression":
        reasons = (one["reason"] for row in results["per_class"] for one in row["intervals"].values())
        reason = next(filter(None, reasons))
        assert " (1) |" in printed and f"\n\n- `(1) {reason}`\n" in printed


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("plain", "`plain`"),
        ("a|b", "`a|b`"),
        ("`", "`` ` ``"),
        ("x``y", "```x``y```"),
        ("two\n\nlines", "`two lines`"),
        ("@everybody <b>", "`@everybody <b>`"),
        ("", "` `"),
    ],
)
def test_names_make_no_markup(text: str, span: str) -> None:
    assert code(text) == span


def test_headings_and_cells_of_tables_make_no_markup() -> None:
    table = Table(
        "",
        ["[click](http://x)", "@user", "a|b", "f1 [95%]"],
        [["x|y", Number("1"), Number("2"), Number("3")]],
        summary_rows=1,
    )
    lines = render_markdown(Document("t", [], [Section("s", [table])])).splitlines()
    assert "| `[click](http://x)` | `@user` | `a\\|b` | f1 [95%] |" in lines and "| `x\\|y` | 1 | 2 | 3 |" in lines


def test_the_summary_has_slices_and_no_paths(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs["sliced"]), "--markdown"]) == 0
    printed, results = capsys.readouterr().out, results_of(runs["sliced"])
    assert "`tuned` on `digits.jsonl`: 596 of 596 examples" in printed
    assert "100 groups of 'document' are resampled as clusters" in printed
    for one in (one for one in results["slices"] if one["by"] == "score"):
        interval = one["intervals"]["accuracy"]
        ends = f"[{interval['low']:.4f}, {interval['high']:.4f}]"
        assert f"| `{one['value']}` | {one['n']} | {one['metrics']['accuracy']:.4f} {ends} |" in printed


def test_the_summary_says_below_a_table_why_an_interval_is_missing(runs: dict[str, Path]) -> None:
    results = results_of(runs["sliced"])
    nothing = {"confidence": 0.95, "low": None, "high": None, "method": None, "resamples": None, "reason": "too few|x"}
    results["intervals"]["mcc"] = nothing
    results["slices"][0]["intervals"]["accuracy"] = nothing
    run = ShownEvaluation(CompleteRun.model_validate(results), runs["sliced"])
    printed = render_markdown(run.describe(ReportOptions()))
    assert f"| `mcc` | {results['metrics']['mcc']:.4f} (1) |" in printed
    first, *_ = results["slices"]
    assert f"| {first['n']} | {first['metrics']['accuracy']:.4f} (1) |" in printed
    assert printed.count("\n- `(1) too few|x`\n") == 2


def test_a_model_card_takes_the_metadata(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub import ModelCard

    assert main([str(runs["single"]), "--model-index", "--model-name", "me/sentiment"]) == 0
    card = ModelCard(f"---\n{capsys.readouterr().out}---\n")
    metrics = results_of(runs["single"])["metrics"]
    assert card.data.model_name == "me/sentiment"
    found = {one.metric_name: one for one in card.data.eval_results}
    assert {name: one.metric_value for name, one in found.items()} == {name: metrics[name] for name in found}
    assert {"accuracy", "f1_macro", "mcc"} <= set(found)
    assert found["mcc"].metric_type == "matthews_correlation"
    assert found["f1_macro"].metric_type == "f1"
    assert found["accuracy"].dataset_type == "test.csv"


def test_a_path_is_not_put_into_a_model_card(hostile_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(hostile_run), "--model-index"]) == 0
    printed = capsys.readouterr().out
    assert str(hostile_run.parent) not in printed
    [model] = yaml.safe_load(printed)["model-index"]
    assert {one["dataset"]["type"] for one in model["results"]} == {"data.csv"}


def test_metrics_are_logged_to_a_tracker(runs: dict[str, Path]) -> None:
    assert main([str(runs["single"]), "--tracker", "tensorboard"]) == 0
    logged = scalars_in(runs["single"] / "logs")
    results = results_of(runs["single"])
    assert logged["accuracy"] == pytest.approx(results["metrics"]["accuracy"])
    assert logged["accuracy/low"] == pytest.approx(results["intervals"]["accuracy"]["low"])
