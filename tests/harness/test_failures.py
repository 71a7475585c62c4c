"""Metrics whose code fails on answers: they have no value, and all others, and the run, are not affected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness_tasks import DOCUMENTS, make_tasks

from dist_eval.errors import DataError
from dist_eval.options.harness import HarnessConfig

pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
from lm_eval.api.instance import Instance

from dist_eval.harness.failures import Undefined
from dist_eval.harness.language_model import StandInModel
from dist_eval.harness.metrics import group_results, task_results
from dist_eval.harness.tasks import LoadedTasks

CODE = """
def process(doc, results):
    return {"acc": 1 / (doc["number"] - 5)}

def total(values):
    raise RuntimeError("no total today")

def nothing(values):
    return None

class Low:
    def apply(self, resps, docs):
        raise KeyError("low")
"""
ACC_NORM = {"metric": "acc_norm"}
CHANGES: dict[str, dict[str, Any]] = {
    "processed": {"metric_list": [{"metric": "acc"}], "process_results": "!function own.process"},
    "summed": {"metric_list": [{"metric": "acc", "aggregation": "!function own.total"}, ACC_NORM]},
    "counted": {"metric_list": [{"metric": "f1"}, {"metric": "acc"}]},
    "filtered": {"filter_list": [{"name": "low", "filter": [{"function": "!function own.Low"}]}]},
}


class Unlikely(StandInModel):
    """Finds every text so unlikely that the perplexity of its only word is no number."""

    def loglikelihood_rolling(self, requests: list[Instance], **_: Any) -> list[float]:
        return [-1000.0 for _ in requests]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tasks whose code fails, each in another place; `long` has texts without spaces."""
    folder = make_tasks(tmp_path / "tasks")
    for data in folder.glob("*.json"):
        rows = enumerate(map(json.loads, data.read_text().splitlines()))
        numbered = [{**row, "number": number, "text": "river" * 9} for number, row in rows]
        data.write_text("\n".join(map(json.dumps, numbered)))
    (folder / "own.py").write_text(CODE)
    for name, changes in {**CHANGES, "long": {}}.items():
        task = json.loads((folder / ("texts.yaml" if name == "long" else "words.yaml")).read_text())
        text = json.dumps({**task, "task": name, **changes})
        for function in ("process", "total", "Low"):
            text = text.replace(f'"!function own.{function}"', f"!function own.{function}")
        (folder / f"{name}.yaml").write_text(text)
    group = {"group": "both", "task": ["words", "summed"], "aggregate_metric_list": [{"metric": "acc"}, ACC_NORM]}
    (folder / "both.yaml").write_text(json.dumps(group))
    return folder


def load(folder: Path, *names: str, **changes: Any) -> LoadedTasks:
    options = {"model": "m", "backend": "local", "include_path": [str(folder)], "bootstrap_iters": 10, **changes}
    return LoadedTasks.load(HarnessConfig(tasks=list(names), **options))


def test_a_metric_that_fails_has_a_reason_and_the_others_their_values(folder: Path) -> None:
    names, undefined = ["both", "processed", "counted", "filtered", "long"], Undefined()
    loaded = load(folder, *names)
    found = loaded.run(Unlikely(), undefined=undefined)
    tasks = task_results(found, loaded.aggregations(), undefined, 0.95)
    metrics = {f"{name}/{each.key}": each for name, task in tasks.items() for each in task.metrics}
    reasons = {key: str(metric.interval.reason) for key, metric in metrics.items() if metric.value is None}
    assert {key.partition("/")[0]: reason for key, reason in reasons.items()} == {
        "summed": "its aggregation failed: RuntimeError: no total today",
        "processed": f"it failed on document 5: {folder}/processed.yaml: process_results: ZeroDivisionError: division "
        "by zero",
        "counted": reasons["counted/f1"],
        "filtered": "its filters failed: KeyError: 'low'",
        "long": "its aggregation failed: OverflowError: math range error",
    }
    assert "ValueError: Target is multiclass" in reasons["counted/f1"]
    assert reasons.keys() == {
        *("summed/acc", "processed/acc", "counted/f1", "long/word_perplexity"),
        *(f"filtered/{metric}/low" for metric in ("acc", "acc_norm", "acc_mutual_info", "mcc")),
    }
    [alone] = load(folder, "words").run(Unlikely())["results"].values()
    assert metrics["words/acc"].value == metrics["counted/acc"].value == alone["acc,none"]
    assert metrics["summed/acc_norm"].value == alone["acc_norm,none"]
    assert metrics["long/byte_perplexity"].value == pytest.approx(2.718281828 ** (1000 / 45))
    assert all(len(samples) == DOCUMENTS for samples in found["samples"].values()), "all answers are written"
    of_group = {each.metric: each.value for each in group_results(found)["both"].metrics}
    assert of_group == {"acc": None, "acc_norm": pytest.approx(alone["acc_norm,none"])}
    assert found["results"]["words"] == alone
    for task in loaded.tasks.values():
        assert not {"process_results", "apply_filters"} & task.__dict__.keys()


def test_a_group_of_a_task_without_a_number_has_no_value(folder: Path) -> None:
    task = json.loads((folder / "words.yaml").read_text())
    metrics = [{"metric": "acc", "aggregation": "@"}, ACC_NORM]
    text = json.dumps({**task, "task": "summed", "metric_list": metrics}).replace('"@"', "!function own.nothing")
    (folder / "summed.yaml").write_text(text)
    with pytest.raises(DataError, match="The harness failed on the tasks words, summed: TypeError"):
        load(folder, "both").run(StandInModel())
    found = load(folder, "both").run(StandInModel(), undefined=Undefined())
    of_group = {each.metric: each.value for each in group_results(found)["both"].metrics}
    assert of_group["acc"] is None and of_group["acc_norm"] == found["results"]["words"]["acc_norm,none"]


def test_documents_are_named_by_their_numbers(folder: Path) -> None:
    undefined = Undefined()
    load(folder, "processed", samples={"processed": [2, 5, 9]}).run(StandInModel(), undefined=undefined)
    assert undefined["processed"]["acc,none"].startswith("it failed on document 5: ")


def test_a_standard_error_that_fails_takes_no_value_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> float:
        raise OverflowError("math range error")

    loaded, undefined = load(folder, "endings"), Undefined()
    expected = load(folder, "endings").run(StandInModel())["results"]["endings"]
    monkeypatch.setattr("lm_eval.api.metrics.bootstrap_stderr", fail)
    found = loaded.run(StandInModel(), undefined=undefined)["results"]["endings"]
    assert found == {**expected, "perplexity_stderr,none": "N/A"}
    assert undefined == {"endings": {}}


@pytest.mark.parametrize(
    ("name", "error"), [("processed", "FileNotFoundError"), ("summed", "MemoryError"), ("filtered", "ImportError")]
)
def test_what_a_new_start_may_mend_ends_the_run(name: str, error: str, folder: Path) -> None:
    code, replaced = CODE, ('1 / (doc["number"] - 5)', 'RuntimeError("no total today")', 'KeyError("low")')
    for text, instead in zip(replaced, ('open("/nowhere/words")', "MemoryError()", 'ImportError("low")'), strict=True):
        code = code.replace(text, instead)
    (folder / "own.py").write_text(f"{code}\ndef for_good(values):\n    raise RuntimeError\n")
    path = folder / "summed.yaml"
    text = path.read_text().replace("own.total", "own.for_good").replace("_norm", '_norm", "aggregation": "@')
    path.write_text(text.replace('"@"', "!function own.total"))
    with pytest.raises(DataError, match=error):
        load(folder, name).run(StandInModel(), undefined=Undefined())


@pytest.mark.parametrize("name", [*CHANGES, "long"])
def test_a_check_of_tasks_fails_all_the_same(name: str, folder: Path) -> None:
    with pytest.raises(DataError):
        load(folder, name).run(Unlikely())
