"""The harness' warnings, and silent changes of metrics, as notices for the terminal and `results.json`."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lm_eval import utils

from dist_eval.harness.metrics import read_metrics
from dist_eval.options.harness import HarnessConfig

_LONGEST, _OF_A_KIND = 300, 3

_EXPECTED = re.compile(
    r"metric \S+ is defined, but (aggregation|higher_is_better) is not"  # results.json has the ones in use
    r"|Overwriting default num_fewshot"  # requested by --num-fewshot
    r"|generation_kwargs: .* specified through cli"  # requested by --gen-kwargs
    r"|Custom kwargs can be passed"
)
_INDEX, _REGISTRY = "lm_eval.tasks._index", "lm_eval.api.registry"
_NO_TASK = "Unknown config shape"  # a file that only others include


class Notices(logging.Handler):
    """Collects notices; if many are of one kind, the first ones and their number."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.skipped: dict[str, str] = {}  # the reason for each task file that the harness could not read
        self.error = ""  # the latest error that the harness logged instead of raising it
        self.missing = ""  # the latest one about a metric that does not exist
        self._texts: dict[object, list[str]] = {}
        self._counts: Counter[object] = Counter()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collects the warnings and errors that the harness logs within this context."""
        logger, index = logging.getLogger("lm_eval"), logging.getLogger(_INDEX)
        before = logger.level, logger.propagate
        utils.warning_once.cache_clear()
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        logger.addHandler(self)
        index.setLevel(logging.DEBUG)  # it reports unreadable files only as debug messages
        index.addFilter(self._note_skipped)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(before[0])
            logger.propagate = before[1]
            index.removeFilter(self._note_skipped)
            index.setLevel(logging.NOTSET)

    def emit(self, record: logging.LogRecord) -> None:
        """Records a message of the harness."""
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            self.error = readable(text)
            if record.name == _REGISTRY:
                self.missing = self.error
        if not _EXPECTED.search(text):
            self.say(text, kind=(record.pathname, record.lineno))

    def say(self, text: str, kind: object = None) -> None:
        text = readable(text)
        kind = kind or text
        texts = self._texts.setdefault(kind, [])
        if text not in texts:
            self._counts[kind] += 1
            if len(texts) < _OF_A_KIND:
                texts.append(text)

    def lines(self) -> list[str]:
        """Returns the notices in order of their kinds' first appearance."""
        found = []
        for kind, texts in self._texts.items():
            further = self._counts[kind] - len(texts)
            found += [*texts[:-1], texts[-1] + (f" (and {further} more like this)" if further else "")]
        return found

    def _note_skipped(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.DEBUG and isinstance(record.args, tuple) and len(record.args) == 2:
            path, error = record.args
            if isinstance(error, Exception) and not str(error).startswith(_NO_TASK):
                self.skipped[str(path)] = readable(str(error))
        return record.levelno > logging.DEBUG


def readable(text: str) -> str:
    """Returns a text as a single line of limited length without control characters."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    line = " ".join(words)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def of_examples(options: HarnessConfig, tasks: Mapping[str, Any]) -> Iterator[str]:
    """Yields notices about examples that differ from what the options, or users of the harness, may expect."""
    shots = {name: task.get_config("num_fewshot") for name, task in tasks.items()}
    if options.num_fewshot:
        for name in (name for name, of_task in shots.items() if of_task == 0):
            yield f"Task {name} says num_fewshot: 0, so --num-fewshot {options.num_fewshot} is ignored."
        shots = {name: options.num_fewshot for name, of_task in shots.items() if of_task != 0}
    if options.apply_chat_template and options.fewshot_as_multiturn is None and any(shots.values()):
        yield (
            "The examples before a question are part of its message. --fewshot-as-multiturn makes each a turn, as the "
            "harness' own command line does by default; --no-fewshot-as-multiturn hides this notice."
        )


def after_metrics(name: str, task: Any, samples: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> list[str]:
    """Returns notices about metrics that the harness left out, and documents that it counted as wrong."""
    found = []
    numbers = {metric for metric, _, _ in read_metrics(values)}
    missing = [metric for metric in task.aggregation() if metric not in numbers]
    if missing and (task.OUTPUT_TYPE != "generate_until" or task.get_config("process_results")):
        found.append(
            f"Task {name} names the metric {' and '.join(missing)}, which the harness did not compute (output_type: "
            f"{task.OUTPUT_TYPE})."
        )
    targets = {sample["doc_id"]: sample["target"] for sample in samples}
    lists = sum(isinstance(target, list) for target in targets.values())
    if 0 < lists < len(targets):
        found.append(
            f"Task {name}: {lists} of {len(targets)} documents have a list of targets, the others a single one; the "
            "harness treats all like the first one."
        )
    unlabelled = sum(target is None or _is_negative(target) for target in targets.values())
    if unlabelled and task.OUTPUT_TYPE == "multiple_choice" and not getattr(task, "multiple_input", 0):
        found.append(
            f"Task {name}: the target of {unlabelled} of {len(targets)} documents is missing or below 0, so no choice "
            "is right; the harness counts them as wrong."
        )
    return found


def _is_negative(target: Any) -> bool:
    return isinstance(target, (int, float)) and not target >= 0  # also for NaN
