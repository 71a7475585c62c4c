"""The model that the harness sees: its requests become token ids, and are answered all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import has_bos_prefix
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from dist_eval.errors import ConfigError, DataError, first_line

Pair = tuple[list[int], list[int]]
"""Token ids of a context and its continuation."""

Answer = Callable[[Iterator[Pair]], np.ndarray]
"""Answers contexts and continuations in their order, with the columns of `log_likelihood_columns`, of shape [n]."""

_ROLLING = "loglikelihood_rolling"
_TYPES = ("loglikelihood", _ROLLING)
_TOKENIZED_AT_ONCE = 1000


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A language model for the harness, which answers the requests of all tasks at the first call.

    Token ids are those of the harness' own Hugging Face backend (`lm_eval.models.huggingface.HFLM`).

    Args:
        tokenizer: a Hugging Face tokenizer.
        tasks: all tasks of the run, whose requests the harness has built before its first call.
        answer: answers them.
        max_length: most tokens that the model can be sent.
        vocab_size: number of token ids that the model knows.
        strict: raise an error for a context that is too long.
    """

    def __init__(
        self,
        tokenizer: Any,
        tasks: Sequence[Any],
        answer: Answer,
        *,
        max_length: int,
        vocab_size: int,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.tokenizer, self.max_length = tokenizer, max_length
        self._tasks, self._answer, self._vocab_size, self._strict = tasks, answer, vocab_size, strict
        self._answers: dict[int, tuple[float, bool]] | None = None

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Returns the log-likelihood of each continuation after its context, and whether it is the likeliest."""
        answers = self._all_answers()
        return [answers[id(request)] for request in requests]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Returns the log-likelihood of each text, in windows without overlap of what they predict."""
        answers = self._all_answers()
        return [answers[id(request)][0] for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Refuses (see `require_supported`)."""
        raise refused(requests[0].task_name)

    def _all_answers(self) -> dict[int, tuple[float, bool]]:
        if self._answers is None:
            instances = [instance for task in self._tasks for instance in task.instances]
            for instance in instances:
                if instance.request_type not in _TYPES:
                    raise refused(instance.task_name)
            counts: list[int] = []  # of the texts of each instance
            found = self._answer(self._pairs(instances, counts))
            ends = np.cumsum(counts)
            self._answers = {
                id(instance): _combined(found[end - count : end])
                for instance, end, count in zip(instances, ends, counts, strict=True)
            }
        return self._answers

    def _pairs(self, instances: list[Instance], counts: list[int]) -> Iterator[Pair]:
        """Yields the texts of instances, and appends to `counts` how many each has."""
        for start in range(0, len(instances), _TOKENIZED_AT_ONCE):
            some = instances[start : start + _TOKENIZED_AT_ONCE]
            whole = [instance for instance in some if instance.request_type != _ROLLING]
            tokenized = iter(super().loglikelihood(whole, disable_tqdm=True))  # see _loglikelihood_tokens
            for instance in some:
                rolls = instance.request_type == _ROLLING
                pairs = self._windows(*instance.args) if rolls else [next(tokenized)]
                counts.append(len(pairs))
                for context, continuation in pairs:
                    self._check(instance, context, continuation)
                    yield context, continuation

    def _loglikelihood_tokens(self, requests: list[tuple[Any, list[int], list[int]]], **_: Any) -> list[Pair]:
        """Returns what the harness has made of contexts and continuations; `_all_answers` has it answered."""
        return [(context, continuation) for _, context, continuation in requests]

    def _windows(self, text: str) -> list[Pair]:
        windows = get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def _check(self, instance: Instance, context: list[int], continuation: list[int]) -> None:
        length = len(context) + len(continuation)
        if not context or not continuation:
            what = "context" if continuation else "continuation"
            problem = f"a {what} has no tokens"
        elif len(continuation) > self.max_length:
            problem = f"a continuation has {len(continuation)} tokens, more than the {self.max_length} that can be sent"
        elif self._strict and length > self.max_length + 1:
            problem = (
                f"context and continuation have {length} tokens, more than --max-length {self.max_length + 1}, and "
                "--strict forbids to cut them"
            )
        elif max(max(context), max(continuation)) >= self._vocab_size:
            problem = (
                f"the tokenizer gives the token id {max(*context, *continuation)}, but the model knows only "
                f"{self._vocab_size} ids: it belongs to another model"
            )
        else:
            return
        raise DataError(f"Task {instance.task_name}, document {instance.doc_id}: {problem}.")

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """Id of the token that stands in for an empty context."""
        begin = self.tokenizer.bos_token_id
        return int(self.tokenizer.eos_token_id if begin is None else begin)

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Returns the token ids of a text; special tokens are added unless it begins with one, or as the flag says."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        special = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, verbose=False, **special))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Puts a conversation into the tokenizer's chat template.

        Raises:
            ConfigError: the template does not take this conversation.
        """
        try:
            text: str = self.tokenizer.apply_chat_template(
                chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # jinja2's errors, and those that templates raise
            raise ConfigError(
                f"--apply-chat-template: the tokenizer's chat template fails: {first_line(error)}"
            ) from error
        if add_generation_prompt:
            return text
        begun = chat_history[-1]["content"].strip()  # the answer goes on: what ends the message is cut off
        return text[: text.rindex(begun) + len(begun)]


def refused(task: str) -> ConfigError:
    """Returns the error for a task that needs generated text."""
    return ConfigError(
        f"The task {task} needs generated text (generate_until), which is not supported: choose tasks of the types "
        "multiple_choice, loglikelihood or loglikelihood_rolling."
    )


def _combined(answers: np.ndarray) -> tuple[float, bool]:
    """Returns the answer to a request of one or several texts."""
    return sum(answers["log_likelihood"].tolist()), bool(answers["is_greedy"].all())
