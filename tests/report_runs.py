"""Finished runs to show, made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from samples import FACTS, config_for

from dist_eval.metrics import compute_metrics
from dist_eval.predictions import Predictions
from dist_eval.problems import MULTI_LABEL, SINGLE_LABEL, Problem
from dist_eval.run_folder import RunFolder
from dist_eval.statistics import metric_intervals


def interval(low: float | None, high: float | None) -> dict[str, Any]:
    reason = None if low is not None else "the examples are too few"
    return {"confidence": 0.95, "low": low, "high": high, "method": "wilson", "resamples": None, "reason": reason}


def timelines(ranks: int) -> list[dict[str, Any]]:
    """The last rank takes twice as long as the others, and one of the two servers fails for a while."""

    def of(steps: int, began: float, failing: tuple[int, ...] = ()) -> dict[str, Any]:
        busy = [2.0 + 2.0 * np.sin(step / 3.0) ** 2 for step in range(steps)]
        failed = [int(step in failing) for step in range(steps)]
        return {"began": began, "bin_seconds": 0.25, "busy": busy, "done": [3] * steps, "failed": failed}

    return [
        {
            "rank": rank,
            "host": "here",
            "batches": of(80 if rank == ranks - 1 else 40, 1000.0 + rank / 4),
            "servers": {
                "QmVQE44noRKH2ZZoC8HKSJEsyAvYqAMpmRVPkKsyXn7g3a": of(40, 1000.5),
                "QmRV9fYCNbiC4payq6JoMAs7ganoMHtM9E3Q31d65HuYhc": of(80, 1000.5, failing=(20, 21)),
            },
        }
        for rank in range(ranks)
    ]


def rank_facts(ranks: int, server: str = "QmVQE44noRKH2ZZoC8HKSJEsyAvYqAMpmRVPkKsyXn7g3a") -> list[dict[str, Any]]:
    one = {"host": "here", "batches": 4, "samples": 60, "resumed": 0, "tokens": 900, "in_flight": 3}
    answers = {"requests": 9, "failures": 1, "wrong_answers": 0, "latency_p50": 0.1, "latency_p95": 0.2}
    traffic = {"servers": [{"peer": server, **answers}]}
    return [
        {**one, "rank": rank, "seconds": 20.0 if rank == ranks - 1 else 10.0, "traffic": traffic}
        for rank in range(ranks)
    ]


SLICES = [
    {
        "by": by,
        "value": value,
        "n": 50,
        "metrics": {"accuracy": 0.8, "f1_macro": None if value == "few" else 0.7},
        "undefined": {"f1_macro": "a class has no example"} if value == "few" else {},
        "intervals": {"accuracy": interval(0.7, 0.9), "f1_macro": interval(None, None)},
    }
    for by, value in (("source", "news"), ("source", "few"), ("length", "1 to 10"))
]
CALIBRATION = {
    "ece": 0.0412,
    "brier": 0.2034,
    "bins": [
        {
            "low": n / 10,
            "high": (n + 1) / 10,
            "n": 7 * n,
            "confidence": n / 10 + 0.05 if n else None,
            "accuracy": n / 10 + 0.02 if n else None,
            "interval": interval(n / 10 - 0.1, n / 10 + 0.1) if n else interval(None, None),
        }
        for n in range(10)
    ],
}


def made_up_run(
    folder: Path,
    names: list[str],
    examples: int = 300,
    problem: Problem = SINGLE_LABEL,
    ranks: int = 3,
    skill: float = 2.0,
    **sections: Any,
) -> Path:
    """Writes a run's folder as the evaluator does."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(examples, len(names)))
    if problem is SINGLE_LABEL:
        label = generator.integers(len(names), size=examples)
        logits[np.arange(examples), label] += skill
    elif problem is MULTI_LABEL:
        label = generator.random((examples, len(names))) < 0.3
        logits = logits + skill * (2.0 * label - 1.0)
    else:
        label = logits * 2 + generator.normal(size=logits.shape)
    found = Predictions.from_logits(np.arange(examples), label, logits, problem)
    metrics = compute_metrics(found, names)
    intervals = {name: one.facts() for name, one in metric_intervals(found, metrics, resamples=99).items()}
    run = RunFolder(config_for(folder))
    run.open()
    run.save_timelines(timelines(ranks))
    coverage = {**FACTS["coverage"], "expected": examples, "seen": examples}
    facts = {
        **FACTS,
        "intervals": intervals,
        "ranks": rank_facts(ranks),
        "coverage": coverage,
        "failures": [],
        **sections,
    }
    run.complete(found, metrics, facts)
    run.close()
    return folder


HOSTILE = (
    '<script>window.ran = "script"</script>',
    "</script><script>window.ran = 'closed'</script>",
    '<img src="x" onerror="window.ran = \'image\'">',
    "<!--<script>",
    "{{ 7 * 7 }} {% raw %}",
    "javascript:window.ran='link'",
    "]]>\u2028\u2029\u202e backwards",
    '"\'><svg/onload=window.ran="svg">',
)
