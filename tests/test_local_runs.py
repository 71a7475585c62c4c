"""Whole runs on this host: every problem type, any number of ranks, custom metrics."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from conftest import Launcher, results_of, run_here

from dist_eval import demo
from dist_eval.__main__ import run
from dist_eval.options.config import EvaluationConfig
from dist_eval.statistics import wilson

ROWS = 41
SOURCES = ["web", "book", "", "web"]
SECTIONS = (
    "problem_type",
    "metrics",
    "undefined",
    "custom_metrics",
    "per_class",
    "confusion_matrix",
    "coverage",
    "data",
)
VIEW = ("intervals", "per_class", "groups", "calibration", "confident_mistakes", "slices")
NAMES = ["sport", "politics", "weather"]


@pytest.fixture(autouse=True)
def _with_sample_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    # this process has the folder in its path already (see pyproject.toml)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def label_of(problem: str, generator: np.random.Generator) -> str:
    if problem == "regression":
        return repr(float(generator.normal()))
    chosen = [name for name in NAMES if generator.random() < 0.5]
    return "|".join(chosen) if problem == "multi_label_classification" else str(generator.choice(NAMES))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """For each problem a tiny BERT with the demo's tokenizer, labelled texts, and the options for them."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    tokenizer, cases = AutoTokenizer.from_pretrained(demo.BASE_MODEL), {}
    for problem in ("single_label_classification", "multi_label_classification", "regression"):
        folder, generator = tmp_path_factory.mktemp(problem), np.random.default_rng(3)
        torch.manual_seed(4)
        names = ["score"] if problem == "regression" else NAMES
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            problem_type=problem,
            id2label=dict(enumerate(names)),
        )
        model = BertForSequenceClassification(config)
        torch.nn.init.normal_(model.classifier.weight, std=2.0)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        with (folder / "data.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label", "source", "doc"])
            for row in range(ROWS):
                text = "".join(generator.choice(list("123/g"), size=1 + row % 13))
                writer.writerow([text, label_of(problem, generator), SOURCES[row % 4], row // 2])
        cases[problem] = [
            *("--model", str(folder / "model"), "--dataset", str(folder / "data.csv"), "--backend", "local"),
            *("--token-budget", "60"),
        ]
    return cases


@dataclass
class Runs:
    """Runs the program, one rank in this process and several under torchrun."""

    launcher: Launcher
    captured: pytest.CaptureFixture[str]

    def __call__(self, options: list[str], output: Path, ranks: int, *extra_options: str) -> dict[str, Any]:
        command = ["-m", "dist_eval", *options, "--output", str(output), *extra_options]
        if ranks == 1:
            self.captured.readouterr()
            status, (printed, error) = run_here(*command), self.captured.readouterr()
        else:
            process = self.launcher.run(*command, ranks=ranks)
            status, printed, error = process.returncode, process.stdout, process.stderr
        assert status == 0, error
        return {**results_of(output), "printed": printed}


@pytest.fixture
def evaluated(launcher: Launcher, capfd: pytest.CaptureFixture[str]) -> Runs:
    return Runs(launcher, capfd)


OWN = {
    "single_label_classification": ["error_rate", "hits", "order"],
    "multi_label_classification": ["hits"],
    "regression": ["mean_absolute"],
}


@pytest.fixture(scope="module")
def complete(cases: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each problem a complete run of one rank, with metrics of our own."""
    folders = {problem: tmp_path_factory.mktemp("complete") / "out" for problem in OWN}
    for problem, output in folders.items():
        own = [f"sample_metrics:{name}" for name in OWN[problem]]
        options = [*cases[problem], "--metric", *own, "--report", "none", "--output", str(output)]
        assert run_here("-m", "dist_eval", *options) == 0
    return folders


@pytest.mark.parametrize("problem", OWN)
def test_our_own_metrics_stand_beside_the_others(problem: str, complete: dict[str, Path]) -> None:
    results, table = results_of(complete[problem]), pandas.read_parquet(complete[problem] / "predictions.parquet")
    assert results["problem_type"] == problem
    values, label, prediction = results["metrics"], np.stack(table["label"]), np.stack(table["prediction"])
    if problem == "regression":
        assert values["mean_absolute"] == pytest.approx(values["mae"])
    else:
        assert values["hits"] == (label == prediction).sum()
    if problem == "single_label_classification":
        assert values["error_rate"] == pytest.approx(1 - values["accuracy"])
    assert {name.split("/")[0] for name in results["custom_metrics"]} == {*OWN[problem]}
    assert {*results["custom_metrics"]} <= {*values}


@pytest.mark.parametrize(
    "problem", ["multi_label_classification", pytest.param("regression", marks=pytest.mark.slow)]
)  # one label: the next test
def test_a_run_gives_the_same_to_the_last_byte_on_any_number_of_ranks(
    problem: str, cases: dict[str, list[str]], complete: dict[str, Path], evaluated: Runs, tmp_path: Path
) -> None:
    own = [f"sample_metrics:{name}" for name in OWN[problem]]
    one, three = (
        results_of(complete[problem]),
        evaluated(cases[problem], tmp_path, 3, "--report", "none", "--metric", *own),
    )
    assert (tmp_path / "predictions.parquet").read_bytes() == (complete[problem] / "predictions.parquet").read_bytes()
    for section in SECTIONS:
        assert json.dumps(one[section]) == json.dumps(three[section]), section
    assert [work["combined"] for work in three["ranks"]] == [work["samples"] for work in three["ranks"]]
    shown = "mae" if problem == "regression" else "hits"
    assert f"{three['metrics'][shown]:6.4f}" in three["printed"]


def test_a_sample_is_the_same_to_the_last_byte_on_any_number_of_ranks_and_names_the_rows_of_the_file(
    cases: dict[str, list[str]], evaluated: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [*cases["single_label_classification"], "--sample", "24", "--stratify", "--metric", "sample_metrics:hits"]
    options += ["--slice-by", "source", "--report", "texts"]
    one, two = (evaluated([*options, "--sample-seed", "7"], tmp_path / str(n), n) for n in (1, 2))
    files = [tmp_path / n / "predictions.parquet" for n in ("1", "2")]
    assert files[0].read_bytes() == files[1].read_bytes()
    for section in (*SECTIONS, *VIEW):
        assert json.dumps(one[section]) == json.dumps(two[section]), section
    figures = [work[two["spread"]["figure"]] for work in two["ranks"]]
    assert (two["spread"]["lowest"], two["spread"]["highest"]) == (min(figures), max(figures))
    assert one["spread"] is None
    assert "by rank: " in two["printed"] and "by rank: " not in one["printed"]
    words = f"24 of {ROWS} rows, each class in its share, sampled with seed 7"
    for printed in (one["printed"], two["printed"]):
        assert printed.startswith(f"evaluating {words}\n")
        assert f"rows: {words}; the intervals are for all {ROWS} rows\n" in printed
    selection = {name: value for name, value in one["data"]["selection"].items() if name != "column_digests"}
    assert selection == {"method": "stratified", "population": ROWS, "rows": 24, "seed": 7, "precision": None}
    table = pandas.read_parquet(files[0])
    rows = table["index"].tolist()
    assert (len(rows), one["coverage"]["seen"], one["coverage"]["expected"]) == (24, 24, 24)
    data = pandas.read_csv(options[3], keep_default_na=False)
    assert [NAMES[number] for number in table["label"]] == data["label"][rows].tolist()
    assert {part["value"]: part["n"] for part in one["slices"]} == data["source"][rows].value_counts().to_dict()
    assert {mistake["index"] for mistake in one["confident_mistakes"]} <= {*rows}
    hits = round(one["metrics"]["accuracy"] * 24)
    interval = one["intervals"]["accuracy"]
    assert (interval["low"], interval["high"]) == wilson(hits, 24, sampling_fraction=24 / ROWS)
    page = (tmp_path / "2" / "report.html").read_text(encoding="utf-8")
    assert words in page
    mistake = one["confident_mistakes"][0]["index"]
    assert f'"#{mistake}"' in page and json.dumps(data["text"][mistake]) in page
    assert run_here("-m", "dist_eval", *options, "--sample-seed", "8", "--output", str(tmp_path / "2")) == 1
    assert "it differs in the selection of rows. Choose" in capfd.readouterr().err


def test_a_complete_run_gives_further_metrics_without_a_forward(
    cases: dict[str, list[str]], complete: dict[str, Path], evaluated: Runs, tmp_path: Path
) -> None:
    problem, output = "single_label_classification", tmp_path / "out"
    shutil.copytree(complete[problem], output)
    before = results_of(output)
    after = evaluated(cases[problem], output, 1, "--report", "none", "--metric", "sample_metrics:sure_loss")
    assert after["finished"] == before["finished"]
    assert after["custom_metrics"] == [*before["custom_metrics"], "sure_loss"]
    assert after["metrics"].pop("sure_loss") == pytest.approx(after["metrics"]["log_loss"])
    assert after["metrics"] == before["metrics"]
    assert "Nothing was sent" in after["printed"]
    assert re.search(r"^sure_loss +\d", after["printed"], re.MULTILINE)
    assert "examples/s" not in after["printed"], "the speed is that of another start"


@pytest.mark.parametrize(
    "problem", [next(iter(OWN)), *(pytest.param(name, marks=pytest.mark.slow) for name in list(OWN)[1:])]
)
def test_a_complete_run_is_analysed_again_without_a_forward(
    problem: str, cases: dict[str, list[str]], complete: dict[str, Path], evaluated: Runs, tmp_path: Path
) -> None:
    options, output = cases[problem], tmp_path / "out"
    shutil.copytree(complete[problem], output)
    before = results_of(output)
    assert (before["slices"], before["groups"]) == ([], None)
    view = ["--slice-by", "source", "length", "--group-column", "doc", "--confidence", "0.9"]
    view += ["--metric", *(f"sample_metrics:{name}" for name in OWN[problem])]
    fresh = evaluated(options, tmp_path / "fresh", 1, *view)
    for path in (output / "journal").iterdir():
        if path.name != "fingerprint.json":
            path.unlink()
    after = evaluated(options, output, 1, *view)
    assert "Nothing was sent" in after["printed"]
    assert (after["finished"], after["data"], after["metrics"]) == (before["finished"], fresh["data"], fresh["metrics"])
    assert before["data"] == fresh["data"]
    for section in VIEW:
        assert json.dumps(after[section]) == json.dumps(fresh[section]), section
    assert after["config"]["slice_by"] == ["source", "length"]
    assert after["groups"] == {"column": "doc", "count": 21, "largest": 2}
    for printed in (fresh["printed"], after["printed"]):
        assert "\nweb " in printed and "\n(empty) " in printed and " tokens " in printed
        assert "intervals: 21 groups of 'doc' are resampled as clusters" in printed
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "<caption>By source</caption>" in page and "21 groups of" in page
    sources = [part for part in fresh["slices"] if part["by"] == "source"]
    assert [(part["value"], part["n"]) for part in sources] == [("web", 21), ("", 10), ("book", 10)]
    assert sum(part["n"] for part in fresh["slices"] if part["by"] == "length") == ROWS
    files = [folder / "predictions.parquet" for folder in (output, tmp_path / "fresh")]
    assert files[0].read_bytes() == files[1].read_bytes()
    table = pandas.read_parquet(files[0])
    assert table["group"].value_counts().tolist() == [2] * 20 + [1]
    web = table[[SOURCES[row % 4] == "web" for row in range(ROWS)]]
    if problem == "single_label_classification":
        assert sources[0]["metrics"]["accuracy"] == pytest.approx((web["label"] == web["prediction"]).mean())
        assert fresh["intervals"]["accuracy"]["method"] != "wilson" == before["intervals"]["accuracy"]["method"]
        wrong = table[table["label"] != table["prediction"]]
        top = max(wrong.index, key=lambda row: (max(wrong["probabilities"][row]), -row))
        first = fresh["confident_mistakes"][0]
        assert (first["index"], first["label"]) == (top, NAMES[table["label"][top]])
    assert (output / "reliability_diagram.png").exists() == (problem != "regression")


def fails(tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], **changes: Any) -> str:
    model, dataset = options[1], options[3]
    given = {"model": model, "dataset": dataset, "backend": "local", "output": str(tmp_path / "out"), **changes}
    (tmp_path / "own").mkdir()
    assert run(EvaluationConfig(**given), tmp_path / "own") == 1
    message = results_of(tmp_path / "out")["error"]["message"]
    assert message in capfd.readouterr().err
    return message


def test_a_wrong_metric_is_an_error_before_anything_is_read(
    cases: dict[str, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = cases["single_label_classification"]
    message = fails(tmp_path, capfd, options, metric=["sample_metrics:gives_text"], dataset="/nowhere.csv")
    assert "--metric sample_metrics:gives_text: for 8 synthetic examples" in message
