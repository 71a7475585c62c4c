"""Folders of runs on tasks of the harness, made of documents' values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_eval.harness.metrics import group_results, task_results
from dist_eval.options.harness import HarnessConfig
from dist_eval.results.inputs import ContinuationsSummary, Coverage, PlanSummary
from dist_eval.results.tasks import LANGUAGE_MODELING, LanguageModelSummary, TasksFiles, TasksResults
from dist_eval.results.work import RankWork, Throughput
from dist_eval.runs.evaluation_folder import EvaluationFolder

CHOICES = ("north", "south", "east")


def task_run(
    folder: Path, values: Mapping[str, Mapping[str, Sequence[Any]]], figures: Mapping[str, float], first: int = 0
) -> Path:
    """Writes a run.

    Args:
        folder: its folder.
        values: of the documents, by task and metric.
        figures: value of each metric, by "TASK METRIC"; by default the mean.
        first: number of the first document.
    """
    samples = {task: _samples(task, of_task, first) for task, of_task in values.items()}
    results = {
        "samples": samples,
        "results": {
            task: {f"{name},none": figures.get(f"{task} {name}", _mean(own)) for name, own in of_task.items()}
            for task, of_task in values.items()
        },
        "higher_is_better": {task: dict.fromkeys(of_task, True) for task, of_task in values.items()},
        "versions": dict.fromkeys(values, 1.0),
        "n-shot": dict.fromkeys(values, 2),
        "groups": {"all": {"acc,none": 0.5}},
        "group_subtasks": {"all": list(values)},
    }
    aggregations = {
        task: {name: "perplexity" if name == "perplexity" else "mean" for name in of_task}
        for task, of_task in values.items()
    }
    config = HarnessConfig(tasks=list(values), model="base", backend="local")
    run = EvaluationFolder(folder, config.recorded())
    run.open()
    run.close()
    files = TasksFiles(results="results_now.json", samples={task: f"samples_{task}_now.jsonl" for task in values})
    (folder / "results_now.json").write_text("{}")
    for task, of_task in samples.items():
        (folder / files.samples[task]).write_text("".join(json.dumps(sample) + "\n" for sample in of_task))
    texts = sum(len(CHOICES) * len(of_task) for of_task in samples.values())
    run.complete(
        None,
        TasksResults(
            problem_type=LANGUAGE_MODELING,
            tasks=task_results(results, aggregations, 0.95),
            groups=group_results(results),
            harness_version="0.4.13",
            files=files,
            coverage=Coverage(expected=texts, seen=texts, duplicates=0, missing=0),
            requests=ContinuationsSummary(
                texts=texts, forwards=texts, saved=0, truncated=1, longest=9, max_length=9, digest="d"
            ),
            model=LanguageModelSummary(base="base", base_is_path=False, digest="d", tokenizer_digest="d"),
            plan=PlanSummary(batches=1, padded_tokens=1, real_tokens=1, digest="d"),
            ranks=[_rank(texts)],
            throughput=Throughput(seconds=1.0, examples_per_second=1.0, tokens_per_second=1.0),
            swarm=None,
        ),
    )
    return folder


def _samples(task: str, values: Mapping[str, Sequence[Any]], first: int) -> list[dict[str, Any]]:
    """Returns samples as the harness writes them: the first choice is right, the second is taken where acc is 0."""
    found = []
    for number in range(len(next(iter(values.values())))):
        context, own = f"{task} question {first + number}", {name: one[number] for name, one in values.items()}
        likelihoods = [-2.0, -1.5 if own.get("acc") == 0 else -3.0, -4.0]
        found.append(
            {
                "doc_id": first + number,
                "target": "0",
                "arguments": {
                    f"gen_args_{n}": {"arg_0": context, "arg_1": f" {choice}"} for n, choice in enumerate(CHOICES)
                },
                "filtered_resps": [[str(one), "False"] for one in likelihoods],
                "filter": "none",
                "doc_hash": hashlib.sha256(context.encode()).hexdigest(),
                **own,
            }
        )
    return found


def _mean(values: Sequence[Any]) -> float:
    return float(sum(values) / len(values))


def _rank(texts: int) -> RankWork:
    return RankWork(
        rank=0,
        host="here",
        began="2026-01-01T00:00:00+00:00",
        batches=1,
        samples=texts,
        resumed=0,
        tokens=1,
        padded_tokens=1,
        seconds=1.0,
        in_flight=1,
        traffic=None,
    )
