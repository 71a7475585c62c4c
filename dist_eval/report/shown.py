"""Presents a complete run for reports, summaries and model cards; each kind of run adds its own parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dist_eval.report.document import Document, Mistakes, ReportOptions, Section, metric_card
from dist_eval.report.naming import options_of
from dist_eval.report.sections import failure_sections, format_speed, slice_sections, work_section
from dist_eval.results.run import AnyCompleteRun
from dist_eval.runs.files import RESULTS


class ShownRun(ABC):
    """A complete run."""

    results: Any
    kind: str  # kind of evaluation
    unit: str  # the word for what was evaluated, in the plural
    model: str  # public name of the model
    data: str  # public name of the data
    main_metrics: Sequence[str]  # names of the metrics in tables of several runs
    slice_metrics: Sequence[str]  # names of the metrics of slices, most important first
    cards: Sequence[tuple[str, str]]  # title and name of the most important metrics
    plots: Sequence[str] = ()  # names of the plots in the run's folder
    weights: str  # digest of the model's weights

    def __init__(self, results: AnyCompleteRun, folder: Path = Path()) -> None:
        self.results, self.folder = results, folder
        self.options = options_of(results)

    def describe(self, options: ReportOptions) -> Document:
        """Describes the run."""
        results = self.results
        return Document(
            title=self.folder.resolve().name,
            kind=self.kind,
            model=self.model,
            data=self.data,
            facts=[self.coverage(), format_speed(results, self.unit)],
            files=[RESULTS, *results.tables, *(plot for plot in self.plots if (self.folder / plot).exists())],
            cards=[metric_card(title, name, results) for title, name in self.cards],
            sections=[
                *self.sections(),
                *slice_sections(results.slices, self.slice_metrics),
                work_section(results, self.unit, with_hosts=options.texts),
                *failure_sections(results.failures),
            ],
            find_mistakes=lambda: self.find_mistakes(options),
            details=[(name, str(value)) for name, value in self.details().items() if value],
        )

    @abstractmethod
    def coverage(self) -> str:
        """Returns how much was evaluated."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """Returns the sections with metrics and everything else computed from the samples."""

    @abstractmethod
    def find_mistakes(self, options: ReportOptions) -> Mistakes:
        """Lists the mistakes."""

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """Returns further facts by name; empty ones are not shown."""

    @abstractmethod
    def is_lower_better(self, metric: str) -> bool:
        """Returns whether smaller values of a metric are better."""

    @abstractmethod
    def has_data_of(self, other: ShownRun) -> bool:
        """Returns whether the metrics of two runs can be compared."""

    @abstractmethod
    def entries(self) -> list[dict[str, Any]]:
        """Returns the metrics for a model card: the arguments of `huggingface_hub.EvalResult`."""
