"""Metrics of generated texts: values per text, means with intervals, and slices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dist_eval.analysis.options import AnalysisOptions
from dist_eval.analysis.slices import RESAMPLES, Measured, slices_of
from dist_eval.metrics.custom_metrics import NoResult, error_sentence
from dist_eval.metrics.texts import TEXT_METRICS, USUAL_METRICS, TextMetric, find_answer
from dist_eval.record import MetricValues, Reasons
from dist_eval.results.scores import Interval, Slice
from dist_eval.results.tasks import NO_FILTER, TaskMetric
from dist_eval.runs.saved_samples import Texts
from dist_eval.statistics.documents import document_interval

_MEAN = "mean"


def measure_texts(
    texts: Texts, metrics: Sequence[TextMetric], pattern: re.Pattern[str] | None
) -> tuple[Texts, Reasons]:
    """Returns the texts with answers and values of metrics, and the reasons why failed custom metrics lack values.

    Without a pattern the text is the answer. If a pattern does not match, the answer is wrong: 0 for built-in metrics,
    an empty text for custom ones. Values of other metrics are unchanged.
    """
    answers = None if pattern is None else [find_answer(pattern, text) for text in texts.text]
    values = dict(texts.values)
    undefined: Reasons = {}
    for metric in metrics:
        try:
            column = list(_values_of(metric, texts.text if answers is None else answers, texts))
        except _MetricFailure as error:
            values.pop(metric.name, None)
            undefined[metric.name] = str(error)
        else:
            is_share = metric.name in USUAL_METRICS or {*map(type, column)} == {bool}
            values[metric.name] = np.asarray(column, dtype=np.bool_ if is_share else np.float64)
    return replace(texts, values=values, answer=answers), undefined


class _MetricFailure(Exception):
    """A metric failed for a text; the message gives the reason."""


def _values_of(metric: TextMetric, answers: Sequence[str | None], texts: Texts) -> Iterator[float]:
    for row, answer, references in zip(texts.index.tolist(), answers, texts.references, strict=True):
        if answer is None and not metric.is_custom:
            yield 0.0
            continue
        try:
            yield metric.measure(answer or "", references)
        except Exception as error:
            if not metric.is_custom:
                raise
            what = f"gave {error}" if isinstance(error, NoResult) else f"raised {error_sentence(error)}"
            raise _MetricFailure(f"the metric {what.removesuffix('.')} (row {row})") from error


def mean_metrics(texts: Texts, undefined: Mapping[str, str], options: AnalysisOptions) -> list[TaskMetric]:
    """Returns the metrics of all texts, with intervals; `undefined` has the reasons for metrics without a value."""
    everything = np.arange(len(texts))
    names = [*texts.values, *undefined]
    values, reasons, intervals = _means(texts, everything, names, undefined, options)
    return [
        TaskMetric(
            metric=name,
            filter=NO_FILTER,
            value=values[name],
            documents=0 if name in reasons else len(texts),
            aggregation=_MEAN,
            interval=intervals[name],
            higher_is_better=True if name in TEXT_METRICS else None,
        )
        for name in names
    ]


def text_slices(texts: Texts, undefined: Mapping[str, str], options: AnalysisOptions) -> list[Slice]:
    """Returns the section `slices` of `results.json` (see `mean_metrics`)."""
    names = [*texts.values, *undefined]

    def measure(places: np.ndarray) -> Measured:
        return _means(texts, places, names, undefined, options, RESAMPLES)

    return [
        entry
        for slicing in options.slicings
        for entry in slices_of(texts.index, slicing, names, options.confidence, measure)
    ]


def _means(
    texts: Texts,
    places: np.ndarray,
    names: Sequence[str],
    undefined: Mapping[str, str],
    options: AnalysisOptions,
    most: int | None = None,
) -> Measured:
    """Returns the mean of each metric over some texts, the reasons for undefined ones, and intervals."""
    means: MetricValues = dict.fromkeys(names)
    reasons = {name: undefined[name] for name in names if name in undefined}
    intervals = {name: Interval(confidence=options.confidence, reason=reason) for name, reason in reasons.items()}
    for name in texts.values:
        numbers = texts.numbers(name)
        values = [numbers[place] for place in places.tolist()]
        means[name] = mean = math.fsum(values) / len(values)
        intervals[name] = document_interval(
            values,
            mean,
            _MEAN,
            options.confidence,
            is_share=texts.values[name].dtype == np.bool_,
            groups=None if texts.group is None else texts.group[places],
            sampling_fraction=options.sampling_fraction,
            most=most,
        )
    return means, reasons, {name: intervals[name] for name in names}
