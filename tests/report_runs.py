"""Complete synthetic runs for tests of the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from conftest import results_of
from samples import FACTS, PEER_ID, opened, sections

from dist_eval.analysis.options import AnalysisOptions, analyse
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, SINGLE_LABEL, Problem


def rank_results(ranks: int) -> list[dict[str, Any]]:
    answers = {"requests": 9, "failures": 1, "wrong_answers": 0, "token_blocks": 900}
    announced = {"dtype": "float32", "quantization": "none", "version": "2.2.0.post1", "adapters": []}
    server = {"peer": PEER_ID, "announced": announced, **answers, "latency_p50": 0.1, "latency_p95": 0.2}
    counts = {"round_trips": 9, "retries": 1, "halved": 0, "bytes_sent": 4096, "bytes_received": 4096}
    traffic = {"compression": "none", **counts, "servers": [server]}
    return [
        {**FACTS["ranks"][0], "rank": rank, "seconds": 20.0 if rank == ranks - 1 else 10.0, "traffic": traffic}
        for rank in range(ranks)
    ]


def synthetic_run(
    folder: Path,
    names: list[str],
    examples: int = 300,
    problem: Problem = SINGLE_LABEL,
    ranks: int = 3,
    skill: float = 2.0,
    analysis_options: AnalysisOptions | None = None,
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
    options = analysis_options or AnalysisOptions()
    found = options.grouped(Predictions.from_logits(np.arange(examples), label, logits, problem))
    metrics = compute_metrics(found, names)
    run = opened(folder)
    coverage = {**FACTS["coverage"], "expected": examples, "seen": examples}
    analysis = analyse(found, metrics, options)
    run.complete(found, sections(metrics, **dict(analysis), ranks=rank_results(ranks), coverage=coverage))
    run.close()
    results_of(folder)
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
