"""Few-shot examples of the harness' tasks, without those that are the question that they stand before."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from lm_eval.api.task import ConfigurableTask

from dist_eval.errors import DataError

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_Shown = tuple[str, tuple[str, str] | None]


class ExampleGuard:
    """Replaces examples of a task that are the question itself: the same document, or the same question and answer.

    The harness leaves a question out of its examples only if they come from a split with the same name as `test_split`,
    which they do not where a task names no `fewshot_split`, or is evaluated on its validation split.

    Attributes:
        prompts: number of prompts with an example that was replaced.
    """

    def __init__(self, task: ConfigurableTask) -> None:
        self._task, self.prompts = task, 0
        self._question: _Shown = "", None
        self._known: dict[int, tuple[Any, _Shown]] = {}
        self._fewshot_context, self._sample = task.fewshot_context, task.sampler.sample
        task.fewshot_context, task.sampler.sample = self.fewshot_context, self.sample

    def fewshot_context(self, doc: Any, num_fewshot: int, **options: Any) -> Any:
        """Returns the context of a document, as the task makes it."""
        if num_fewshot:
            self._question = self._as_shown(doc, self._task.config)
        return self._fewshot_context(doc, num_fewshot=num_fewshot, **options)

    def sample(self, n: int, **options: Any) -> Sequence[Any]:
        """Returns examples as the task's own sampler draws them, with others in the place of the question."""
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
        if id(example) not in self._known:  # with the example itself, whose id would be used again if it were dropped
            self._known[id(example)] = example, self._as_shown(example, self._task.fewshot_cfg)
        document, turn = self._known[id(example)][1]
        return document == self._question[0] or (turn is not None and turn == self._question[1])

    def _as_shown(self, doc: Any, forms: Any) -> _Shown:
        """Returns a document as text, and question and answer as an example shows them; None if it has none."""
        task = self._task
        text = task.doc_to_text(doc, forms.doc_to_text)
        answer = task.doc_to_target(doc, forms.doc_to_target)
        choices = task.doc_to_choice(doc, forms.doc_to_choice) if forms.doc_to_choice else []
        try:
            text = choices[text] if isinstance(text, int) else text
            answer = answer[0] if isinstance(answer, list) else choices[answer] if isinstance(answer, int) else answer
        except LookupError:  # a label that is none of the choices
            answer = None
        turn = (text, answer) if isinstance(text, str) and isinstance(answer, str) else None
        return document_text(doc), turn

    def _too_few(self, wanted: int, found: int) -> DataError:
        return DataError(
            f"Task {self._task.config.task}: {wanted} examples are wanted in front of each question (--num-fewshot, or "
            f"the task's num_fewshot), but besides the question there are only {found} to draw from."
        )


def document_text(value: Any) -> str:
    """Returns a document or a task's definition as text that is the same in every process."""
    return _ADDRESS.sub("", json.dumps(value, sort_keys=True, default=str))
