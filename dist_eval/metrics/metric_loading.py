"""Loads custom metrics (`--metric`) and checks each on synthetic examples, before anything is sent.

`custom_metrics` documents the kinds of metrics. A metric of generated texts is one of `texts`, or a user's function of
a text and its references. This module runs code that the user has named: importable modules, and scripts of Hugging
Face's `evaluate` in files or folders on this host. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.errors import ConfigError
from dist_eval.metrics.custom_metrics import (
    CustomMetric,
    MetricInputs,
    NoResult,
    described,
    error_sentence,
    number_of,
    numbers_by_name,
)
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.texts import EXTRA_PACKAGES, TEXT_METRICS, USUAL_METRICS, TextMetric
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.tables import format_count

_SPEC = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<target>.+)", re.DOTALL)
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ROWS_IN_A_CHUNK = 1 << 16


def load_metrics(
    specs: Sequence[str], problem: Problem, num_labels: int, built_in: Sequence[str]
) -> list[CustomMetric]:
    """Loads metrics for a head of `num_labels` outputs, and checks each on a few synthetic examples.

    `specs` are values of `--metric`: `package.module:name`, or the path of a metric of Hugging Face's `evaluate`, with
    an optional prefix `NAME=` that sets the name. The names `built_in` are reserved.
    """
    sample = MetricInputs.of(synthetic_predictions(problem, num_labels))
    metrics: list[CustomMetric] = []
    for spec in specs:
        metric = _load(spec, problem, sample)
        if metric.name in {*built_in, *(other.name for other in metrics)}:
            raise _name_in_use(spec, metric.name)
        _check(metric, sample)
        metrics.append(metric)
    return metrics


def synthetic_predictions(problem: Problem, num_labels: int) -> Predictions:
    """Returns a few fixed examples with every class or label and mostly correct predictions."""
    rows = np.arange(max(8, 2 * num_labels))
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(len(rows), num_labels))
    label: np.ndarray
    if problem is SINGLE_LABEL:
        label = rows % num_labels
        logits[rows[1:], label[1:]] += 3
    elif problem is MULTI_LABEL:
        label = (rows[:, np.newaxis] + np.arange(num_labels)) % 2 == 0
        logits += np.where(label, 1.5, -1.5)
    else:
        label = logits + generator.normal(size=logits.shape) / 4
    return Predictions.from_logits(rows, label, logits, problem)


def _name_in_use(spec: str, name: str) -> ConfigError:
    return ConfigError(
        f"--metric {spec}: the name {name!r} is already in use. Give this metric another name: "
        f"--metric my_{name}={spec.split('=')[-1]}."
    )


def load_text_metrics(specs: Sequence[str], taken: Sequence[str] = ()) -> list[TextMetric]:
    """Loads the default metrics of generated texts, then the named ones; checks custom ones on synthetic texts.

    `specs` are values of `--metric`: names of `TEXT_METRICS`, or `package.module:name` of a function of a text and the
    list of its references that returns a number; with an optional prefix `NAME=` that sets its name. The names `taken`
    are reserved.
    """
    metrics = {name: TextMetric(name, TEXT_METRICS[name]) for name in USUAL_METRICS}
    for spec in dict.fromkeys(specs):
        metric = _load_text_metric(spec)
        if metric.is_custom and metric.name in {*TEXT_METRICS, *metrics, *taken}:
            raise _name_in_use(spec, metric.name)
        metrics[metric.name] = metric
    return list(metrics.values())


def name_of_spec(spec: str) -> str:
    """Returns the name of a metric, given the value of `--metric`."""
    match = _SPEC.fullmatch(spec)
    return (match and match["name"]) or spec.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


def _load_text_metric(spec: str) -> TextMetric:
    package = EXTRA_PACKAGES.get(spec)
    if package and find_spec(package) is None:
        raise ConfigError(
            f"--metric {spec}: the package {package} is not installed. Install it with `uv sync --extra harness`."
        )
    if spec in TEXT_METRICS:
        return TextMetric(spec, TEXT_METRICS[spec])
    match = _SPEC.fullmatch(spec)
    target = match["target"] if match else spec
    if not _OBJECT.fullmatch(target):
        raise ConfigError(
            f"--metric {spec}: is not a metric of generated texts. Choose from {', '.join(TEXT_METRICS)}, or name a "
            "function of your own as package.module:name."
        )
    found = _import(spec, target)
    expected = "A metric of generated texts must be a function of (text, references) that returns a number."
    if inspect.isclass(found) or not callable(found):
        what = "a class" if inspect.isclass(found) else described(found)
        raise ConfigError(f"--metric {spec}: is {what}. {expected}")

    def measure(text: str, references: Sequence[str]) -> float:
        value = found(text, list(references))
        if isinstance(value, bool | np.bool_):
            return bool(value)  # the mean is a share
        number = number_of(value)
        if not math.isfinite(number):
            raise NoResult(f"{number}")
        return number

    called = f"--metric {spec}: for a synthetic text and its references, it"
    _call_twice(lambda: measure("a synthetic text", ["a text", "another"]), called, expected)
    return TextMetric(name_of_spec(spec), measure, is_custom=True)


def _load(spec: str, problem: Problem, sample: MetricInputs) -> CustomMetric:
    match = _SPEC.fullmatch(spec)
    target = match["target"] if match else spec
    if _OBJECT.fullmatch(target):
        return _of_object(name_of_spec(spec), spec, _import(spec, target), problem, sample)
    if Path(target).exists():
        name = (match and match["name"]) or Path(target).resolve().stem
        return CustomMetric(name, spec, _of_evaluate(_load_evaluate(spec, target)))
    if target in TEXT_METRICS:
        raise ConfigError(
            f"--metric {spec}: {target} is a metric of generated texts (--generate). Labels have their usual metrics "
            "without this option."
        )
    raise ConfigError(
        f"--metric {spec}: must be package.module:name, or the path of a metric of Hugging Face's evaluate. The "
        f"file or folder {target} does not exist."
    )


def _import(spec: str, target: str) -> Any:
    module, path = target.split(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--metric {spec}: {error.msg}. Modules must be in the working directory, on PYTHONPATH or installed."
        ) from error
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"--metric {spec}: importing {module} fails: {error_sentence(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"--metric {spec}: {getattr(found, '__name__', module)} has no attribute {part!r}.")
        found = getattr(found, part)
    return found


def _of_object(name: str, spec: str, found: Any, problem: Problem, sample: MetricInputs) -> CustomMetric:
    if _is_of("torchmetrics", ("Metric", "MetricCollection"), found):
        return CustomMetric(name, spec, _of_torchmetrics(spec, _instantiate(spec, found), problem, sample))
    if _is_of("evaluate", ("EvaluationModule", "CombinedEvaluations"), found):
        return CustomMetric(name, spec, _of_evaluate(_instantiate(spec, found)))
    if inspect.isclass(found):
        raise ConfigError(
            f"--metric {spec}: is a class. It must be a function of (predictions, labels, probabilities) of all "
            "examples, or a metric of torchmetrics or evaluate."
        )
    if not callable(found):
        raise ConfigError(f"--metric {spec}: must be a function or a metric, not {described(found)}.")
    return CustomMetric(name, spec, lambda inputs: found(*inputs.arguments()))


def _is_of(package: str, kinds: tuple[str, ...], found: Any) -> bool:
    """Whether an object is an instance, or a class a subclass, of a package's classes; never imports the package."""
    module = sys.modules.get(package)
    classes = tuple(getattr(module, kind) for kind in kinds if hasattr(module, kind))
    return issubclass(found, classes) if inspect.isclass(found) else isinstance(found, classes)


def _instantiate(spec: str, found: Any) -> Any:
    if not inspect.isclass(found):
        return found
    try:
        return found()
    except Exception as error:  # user code may raise anything
        raise ConfigError(
            f"--metric {spec}: {found.__name__}() fails: {error_sentence(error)} If it needs arguments, create an "
            "instance in your module and name the instance."
        ) from error


def _load_evaluate(spec: str, target: str) -> Any:
    try:
        import evaluate
    except ImportError as error:
        raise ConfigError(f"--metric {spec}: the package `evaluate` is not installed.") from error
    try:
        return evaluate.load(str(Path(target).resolve()))
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"--metric {spec}: evaluate cannot load it: {error_sentence(error)}") from error


def _of_evaluate(module: Any) -> Callable[[MetricInputs], Any]:
    return lambda inputs: module.compute(predictions=inputs.predictions, references=inputs.labels)


def _of_torchmetrics(spec: str, metric: Any, problem: Problem, sample: MetricInputs) -> Callable[[MetricInputs], Any]:
    """Determines the form of predictions that a metric accepts: the first that does not raise."""
    forms: dict[str, Callable[[MetricInputs], np.ndarray]] = {}
    if problem is not REGRESSION:
        forms["probabilities"] = _probabilities
    if problem is SINGLE_LABEL and sample.probabilities is not None and sample.probabilities.shape[1] == 2:
        forms["those of class 1"] = lambda inputs: _probabilities(inputs)[:, 1]
    forms["predictions"] = lambda inputs: inputs.predictions
    refusals = []
    for name, form in forms.items():
        try:
            _measure_torchmetrics(metric, form, sample)
        except Exception as error:  # torchmetrics raises various types
            refusals.append(f"{name}: {error_sentence(error)}")
        else:
            return lambda inputs, form=form: _measure_torchmetrics(metric, form, inputs)  # type: ignore[misc]
    raise ConfigError(f"--metric {spec}: the torchmetrics metric accepts none of these: {' '.join(refusals)}")


def _probabilities(inputs: MetricInputs) -> np.ndarray:
    assert inputs.probabilities is not None
    return inputs.probabilities


def _measure_torchmetrics(metric: Any, form: Callable[[MetricInputs], np.ndarray], inputs: MetricInputs) -> Any:
    """Updates a reset copy, in chunks of a fixed size and in dataset order, with floats in single precision."""
    import torch

    fresh = metric.clone()
    fresh.reset()
    for one in fresh.values() if hasattr(fresh, "items") else [fresh]:
        one.sync_on_compute = False  # it gets the examples of all ranks
    for start in range(0, len(inputs), _ROWS_IN_A_CHUNK):
        chunk = inputs.rows(slice(start, start + _ROWS_IN_A_CHUNK))
        arrays = (
            np.array(array, dtype=np.float32 if array.dtype.kind == "f" else array.dtype, order="C")  # writable
            for array in (form(chunk), chunk.labels)
        )
        fresh.update(*map(torch.from_numpy, arrays))
    return fresh.compute()


def _check(metric: CustomMetric, sample: MetricInputs) -> None:
    """Computes a metric on a sample."""
    shapes = ", ".join(
        f"{name} {'None' if array is None else f'{array.dtype} of shape {list(array.shape)}'}"
        for name, array in zip(("predictions", "labels", "probabilities"), sample.arguments(), strict=True)
    )
    called = f"--metric {metric.spec}: for {format_count(len(sample), 'synthetic example')} ({shapes}), it"
    expected = "It must return a float, or a dict of floats by name."
    _call_twice(lambda: numbers_by_name(metric.name, metric.measure(sample)), called, expected)


def _call_twice(measure: Callable[[], object], called: str, expected: str) -> None:
    """Requires that a user's metric returns the same value twice; `called` and `expected` are for messages."""
    try:
        once, again = repr(measure()), repr(measure())
    except NoResult as error:
        raise ConfigError(f"{called} gave {error}. {expected}") from error
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{called} raised {error_sentence(error)} {expected}") from error
    if once != again:
        raise ConfigError(
            f"{called} gave {once} and, called again, {again}. It should depend on its arguments only: seed any "
            "random numbers that it draws."
        )
