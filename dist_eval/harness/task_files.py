"""Checks task files as they are loaded; errors name the file and the key, before anything is sent."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.api.metrics  # fills the registries
from jinja2 import TemplateSyntaxError, UndefinedError
from lm_eval import utils
from lm_eval.api.registry import (
    aggregation_registry,
    filter_registry,
    get_filter,
    get_metric,
    get_metric_aggregation,
    metric_registry,
)
from lm_eval.api.samplers import SAMPLER_REGISTRY
from lm_eval.api.task import ALL_OUTPUT_TYPES, ConfigurableTask
from lm_eval.config.task import FewshotConfig, TaskConfig

from dist_eval.errors import DataError, EvaluationError, error_summary, one_line

_TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix")
_SPLITS = ("test_split", "validation_split", "training_split", "fewshot_split")
_OF_HARNESS = Path(lm_eval.__file__).parent


class TaskFileError(DataError):
    """A key of a task file has a wrong value, or fails on a document."""


class CheckedTask(ConfigurableTask):  # type: ignore[misc]
    """The harness' task of a task file; construction raises errors that name wrong keys."""

    def __init__(self, config: dict[str, Any]) -> None:
        source = (config.get("metadata") or {}).get("config_source", "inline")
        self._file = f"The task {config.get('task')}" if source == "inline" else source
        self._is_own = not Path(source).is_relative_to(_OF_HARNESS)
        if problems := list(_problems(config)):
            raise TaskFileError("\n".join(f"{self._file}: {key}: {problem}" for key, problem in problems))
        try:
            super().__init__(config=config)
        except EvaluationError:
            raise
        except Exception as error:
            raise self._failed(self._split_of(error), error) from error

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        key = "custom_dataset" if callable(self.config.custom_dataset) else "dataset_path"
        self._by_key(key, super().download, dataset_kwargs, **options)

    def doc_to_text(self, doc: Any, doc_to_text: Any = None) -> Any:
        return self._by_template("doc_to_text", super().doc_to_text, doc, doc_to_text)

    def doc_to_target(self, doc: Any, doc_to_target: Any = None) -> Any:
        return self._by_template("doc_to_target", super().doc_to_target, doc, doc_to_target)

    def doc_to_choice(self, doc: Any, doc_to_choice: Any = None) -> Any:
        return self._by_template("doc_to_choice", super().doc_to_choice, doc, doc_to_choice)

    def doc_to_prefix(self, doc: Any) -> Any:
        return self._by_key("gen_prefix", super().doc_to_prefix, doc)

    def resolve_field(self, doc: Any, field: str | None = None) -> Any:
        """Returns the description of a document, or the beginning of its answer."""
        key = "description" if field == self.config.description else "gen_prefix"
        return self._by_key(key, super().resolve_field, doc, field)

    def process_results(self, doc: Any, results: Any) -> Any:
        key = "process_results" if callable(self.config.process_results) else "metric_list"
        return self._by_key(key, super().process_results, doc, results)

    def _by_template(self, key: str, call: Callable[..., Any], doc: Any, form: Any) -> Any:
        template = self.config[key] if form is None else form
        is_word = isinstance(template, str) and template.isidentifier()
        if is_word and self._is_own and template not in self.features:  # the harness would take it for the text itself
            raise TaskFileError(
                f"{self._file}: {key}: there is no column {template!r}{_similar(template, self.features)} "
                f"{self._columns()} (A text of one word is written {{{{{template!r}}}}}.)"
            )
        return self._by_key(key, call, doc, form)

    def _by_key(self, key: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except EvaluationError:
            raise
        except Exception as error:
            raise self._failed(key, error) from error

    def _columns(self) -> str:
        return f"The data has {', '.join(self.features)}."

    def _failed(self, key: str | None, error: Exception) -> TaskFileError:
        if key == "metric_list" and isinstance(error.__context__, TypeError):
            error = error.__context__  # after it, the harness called the metric in another way
        problem = error_summary(error)
        if isinstance(error, UndefinedError):
            problem = f"{one_line(error)}. {self._columns()}"
        elif key in _SPLITS:
            problem = f"the data has no split {error.args[0]!r}, but {', '.join(map(str, self.dataset))}."
        return TaskFileError(f"{self._file}: {f'{key}: ' if key else ''}{problem}")

    def _split_of(self, error: Exception) -> str | None:
        """Returns the key of the split that is missing according to an error; None for other errors."""
        splits = getattr(self, "dataset", None)
        if not (isinstance(error, KeyError) and error.args and isinstance(splits, Mapping)) or error.args[0] in splits:
            return None
        return next((key for key in _SPLITS if self.config[key] == error.args[0]), None)


def _problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields wrong keys of a task file with the reason, as far as it is known without data."""
    yield from _unknown_keys(config, TaskConfig)
    output_type = config.get("output_type", TaskConfig.output_type)
    if output_type not in ALL_OUTPUT_TYPES:
        yield "output_type", f"there is no type {output_type!r}{_similar(output_type, ALL_OUTPUT_TYPES)}"
    if not (config.get("dataset_path") or callable(config.get("custom_dataset"))):
        yield "dataset_path", "is missing: the data, such as json with dataset_kwargs, or a name on the hub."
    if not (config.get("test_split") or config.get("validation_split")):
        yield "test_split", "is missing, and so is validation_split: the split whose documents are evaluated."
    for key in _TEMPLATES:
        if isinstance(template := config.get(key), str):
            try:
                utils.env.parse(template)
            except TemplateSyntaxError as error:
                yield key, f"the template has an error in line {error.lineno}: {one_line(error)}"
    fewshot = config.get("fewshot_config")
    if isinstance(fewshot, Mapping):
        yield from (("fewshot_config", f"{key}: {problem}") for key, problem in _unknown_keys(fewshot, FewshotConfig))
        sampler = fewshot.get("sampler", "default")
        if isinstance(sampler, str) and sampler not in SAMPLER_REGISTRY:
            yield "fewshot_config", f"there is no sampler {sampler!r}{_similar(sampler, SAMPLER_REGISTRY)}"
    yield from (("metric_list", problem) for problem in _wrong_metrics(config))
    yield from (("filter_list", problem) for problem in _wrong_filters(config.get("filter_list") or []))


def _unknown_keys(config: Mapping[str, Any], record: type) -> Iterator[tuple[str, str]]:
    known = [field.name for field in fields(record)]
    yield from ((str(key), f"there is no such key{_similar(key, known)}") for key in config if key not in known)


def _wrong_metrics(config: Mapping[str, Any]) -> Iterator[str]:
    metrics = config.get("metric_list")
    if metrics is not None and not isinstance(metrics, list):
        yield f"it should be a list, not {metrics!r:.40}."
        return
    for entry in metrics or []:
        if not isinstance(entry, dict) or "metric" not in entry:
            yield f"each entry should have `metric: NAME`, unlike {entry!r:.40}."
            continue
        name, aggregation = entry["metric"], entry.get("aggregation")
        makes_own = config.get("process_results") is not None or callable(name)
        if not makes_own and get_metric(name, entry.get("hf_evaluate") is True) is None:
            yield f"there is no metric {name!r}{_similar(name, metric_registry)}"
        elif isinstance(aggregation, str) and aggregation not in aggregation_registry:
            yield f"there is no aggregation {aggregation!r}{_similar(aggregation, aggregation_registry)}"
        elif aggregation is None and get_metric_aggregation(getattr(name, "__name__", name)) is None:
            yield f"the metric {name!r} has no default aggregation: name one, such as `aggregation: mean`."


def _wrong_filters(filters: Any) -> Iterator[str]:
    for entry in filters if isinstance(filters, list) else [filters]:
        steps = entry.get("filter") if isinstance(entry, dict) and "name" in entry else None
        if not isinstance(steps, list) or not all(isinstance(step, dict) and "function" in step for step in steps):
            yield f"each entry should have a name, and a list `filter` of `function: NAME`, unlike {entry!r:.40}."
            continue
        for step in steps:
            function, options = step["function"], {key: step[key] for key in step if key != "function"}
            if not callable(function) and function not in filter_registry:
                yield f"there is no filter {function!r}{_similar(function, filter_registry)}"
                continue
            try:
                get_filter(function)(**options)
            except Exception as error:  # of its options, or of a regular expression
                yield f"the filter {function} cannot be created: {error_summary(error)}"


def _similar(name: Any, known: Iterable[str]) -> str:
    """Returns the end of a sentence about an unknown name, with a similar known one."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else "."
