"""Metrics of generated texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dist_eval.analysis.options import AnalysisOptions
from dist_eval.analysis.texts import mean_metrics, measure_texts
from dist_eval.metrics.metric_loading import load_text_metrics
from dist_eval.runs.saved_samples import Texts

TEXTS = Texts(np.arange(60), [["b"]] * 60, ["a"] * 60, {})


def test_a_mean_is_a_share_where_the_metric_says_right_or_wrong_and_not_where_numbers_happen_to_be_0_or_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_texts.py").write_text(
        "def count(text, references): return text.count('zz')\ndef contains(text, references): return 'zz' in text\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    metrics = load_text_metrics(["of_texts:count", "of_texts:contains", "f1"])
    texts, failed = measure_texts(TEXTS, metrics, None)
    assert not failed
    found = {metric.metric: metric.interval for metric in mean_metrics(texts, {}, AnalysisOptions(0.95))}
    methods = {name: interval.method for name, interval in found.items()}
    shares = dict.fromkeys(("exact_match", "exact_match_raw", "contains"), "wilson")
    assert methods == {**shares, "count": None, "f1": None}
    assert [texts.values[name].dtype for name in ("contains", "count")] == [np.bool_, np.float64]
    assert "same value" in (found["count"].reason or "")
