"""Few-shot examples of the harness' tasks that are not the question itself."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from lm_eval.api.task import ConfigurableTask

from dist_eval.errors import DataError

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_Shown: TypeAlias = tuple[str, tuple[str, str] | None]


class ExampleGuard:
    """Replaces examples that are the question itself: the same document, or the same question and answer.

    The harness removes a question from its examples only if they come from a split with the same name as `test_split`.
    That is not so if a task names no `fewshot_split` or is evaluated on its validation split.
    """

    def __init__(self, task: ConfigurableTask) -> None:
        self._task, self.prompts = task, 0  # number of prompts with a replaced example
        self._question: _Shown = "", None
        self._known: dict[int, tuple[Any, _Shown]] = {}
        self._fewshot_context, self._sample = task.fewshot_context, task.sampler.sample
        task.fewshot_context, task.sampler.sample = self.fewshot_context, self.sample

    def fewshot_context(self, doc: Any, num_fewshot: int, **options: Any) -> Any:
        """Returns the context of a document from the task."""
        if num_fewshot:
            self._question = self._as_shown(doc, self._task.config)
        return self._fewshot_context(doc, num_fewshot=num_fewshot, **options)

    def sample(self, n: int, **options: Any) -> Sequence[Any]:
        """Returns examples from the task's own sampler, with the question replaced by others."""
        sampler = self._task.sampler
        try:
            drawn = self._sample(n=n, **options)
        except (AssertionError, ValueError) as error:
            raise self._too_few(n, len(sampler.fewshot_docs())) from error
        kept = [example for example in drawn if not self._is_question(example)]
        if len(kept) == len(drawn):
            return drawn
        self.prompts += 1
        taken = {id(example) for example in drawn}
        others = (
            example for example in sampler.fewshot_docs() if id(example) not in taken and not self._is_question(example)
        )
        kept += itertools.islice(others, n - len(kept))
        if len(kept) < n:
            raise self._too_few(n, len(kept))
        return kept

    def _is_question(self, example: Any) -> bool:
        if id(example) not in self._known:  # stored with the example, whose id could otherwise be reused
            self._known[id(example)] = example, self._as_shown(example, self._task.fewshot_cfg)
        document, turn = self._known[id(example)][1]
        return document == self._question[0] or (turn is not None and turn == self._question[1])

    def _as_shown(self, doc: Any, forms: Any) -> _Shown:
        """Returns a document as text, and its question and answer as an example shows them, or None."""
        task = self._task
        text = task.doc_to_text(doc, forms.doc_to_text)
        answer = task.doc_to_target(doc, forms.doc_to_target)
        choices = task.doc_to_choice(doc, forms.doc_to_choice) if forms.doc_to_choice else []
        try:
            text = choices[text] if isinstance(text, int) else text
            answer = answer[0] if isinstance(answer, list) else choices[answer] if isinstance(answer, int) else answer
        except LookupError:  # the label is not among the choices
            answer = None
        turn = (text, answer) if isinstance(text, str) and isinstance(answer, str) else None
        return document_text(doc), turn

    def _too_few(self, wanted: int, found: int) -> DataError:
        return DataError(
            f"Task {self._task.config.task}: each question needs {wanted} examples (--num-fewshot, or the task's "
            f"num_fewshot), but there are only {found} to draw from besides the question."
        )


def document_text(value: Any) -> str:
    """Returns a document or a task's definition as text that is the same in every process."""
    return _ADDRESS.sub("", json.dumps(value, sort_keys=True, default=str))
