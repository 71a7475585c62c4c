"""One run on tasks of the lm-evaluation-harness, from its configuration to its report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_eval.data.continuations import write_continuations
from dist_eval.data.generation import write_prompts
from dist_eval.data.tokenizers import load_tokenizer, tokenizer_digest
from dist_eval.errors import ConfigError, DataError, EvaluationError
from dist_eval.evaluation.drive import Judge
from dist_eval.evaluation.requests import (
    Answered,
    RequestContext,
    answer_requests,
    publish_results,
    run_with_leader,
)
from dist_eval.harness.metrics import group_results, task_results
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.generation_config import GenerationSettings
from dist_eval.model.language_model import CausalModel
from dist_eval.options.harness import require_harness
from dist_eval.results.harness import HarnessResults
from dist_eval.runs.fingerprint import Fingerprint

if TYPE_CHECKING:
    from lm_eval.loggers import EvaluationTracker

    from dist_eval.harness.language_model import Pair, Prompt
    from dist_eval.harness.tasks import LoadedTasks


def evaluate_tasks(context: RequestContext) -> HarnessResults | None:
    """Evaluates a language model on tasks of the harness; every rank calls it."""
    if context.topology.is_leader:
        require_harness()
    return run_with_leader(context, lambda *own: _HarnessRun(*own).run())


class AlreadyComplete(EvaluationError):
    """The run's folder holds this very run, complete."""


class _HarnessRun:
    """The leader's part: it runs the harness."""

    def __init__(self, context: RequestContext, base: BaseModelSpec, target: CausalModel) -> None:
        self._context, self._base, self._target = context, base, target
        self._terminal = sys.stdout, sys.stderr
        self._answered: Answered | None = None
        self._broken: Exception | None = None
        self._judge: Judge | None = None
        self._undefined: dict[str, dict[str, str]] = {}

    def run(self) -> HarnessResults | None:
        """Runs the harness, which calls `answer`; writes and prints the results."""
        from dist_eval.harness.judging import DocumentJudge
        from dist_eval.harness.language_model import HarnessModel
        from dist_eval.harness.tasks import LoadedTasks, tracker_of

        context = self._context
        tasks, tokenizer = LoadedTasks.load(context.config), self._tokenizer()
        model = HarnessModel(
            tokenizer,
            list(tasks.tasks.values()),
            lambda pairs, prompts: self._answer(pairs, prompts, tasks, tokenizer),
            max_length=self._base.max_length + self._target.extra_tokens,
            vocab_size=self._base.config.vocab_size,
            strict=context.config.strict,
            seed=context.config.seed,
            think_end=context.config.think_end,
            template_options=context.config.template_options | self._chosen_template(tokenizer),
            generation=lambda: GenerationSettings(self._base.name),
            say=tasks.notices.say,
        )
        self._judge = DocumentJudge(tasks.tasks, model)
        tracker = tracker_of(context.folder.path)
        try:
            found = tasks.run(model, tracker, self._undefined)
        except AlreadyComplete:
            return publish_results(self._context)
        except DataError:
            if self._broken is not None:  # it is no fault of the tasks
                raise self._broken from None
            raise
        return self._finish(found, tasks, tracker, tokenizer)

    def _tokenizer(self) -> Any:
        tokenizer = load_tokenizer(self._base.name)
        if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
            raise ConfigError(
                f"The tokenizer of {self._base.name} has no token that begins or ends a text, which would stand in for "
                "an empty context: name one in its tokenizer_config.json, as bos_token or eos_token."
            )
        if self._context.config.apply_chat_template and not tokenizer.chat_template:
            raise ConfigError(
                f"--apply-chat-template: the tokenizer of {self._base.name} has no chat template. Name a model that "
                "was tuned for chats, or leave the option out."
            )
        self._check_think_end(tokenizer)
        return tokenizer

    def _chosen_template(self, tokenizer: Any) -> dict[str, str]:
        """Returns what the tokenizer is told where it has several chat templates."""
        name, templates = self._context.config.chat_template, tokenizer.chat_template
        if not self._context.config.apply_chat_template or (name is None and not isinstance(templates, dict)):
            return {}
        named = templates if isinstance(templates, dict) else {}
        if (name or "default") not in named:
            has = f"those named {', '.join(named)}" if named else "one only, without a name"
            raise ConfigError(f"--chat-template {name or 'is missing'}: of chat templates, the tokenizer has {has}.")
        return {"chat_template": name or "default"}

    def _check_think_end(self, tokenizer: Any) -> None:
        end, known = self._context.config.think_end, self._base.config.vocab_size
        if isinstance(end, int) and end >= known:
            raise ConfigError(f"--think-end-token {end}: the model knows only the ids of {known} tokens.")
        if end in tokenizer.all_special_tokens:
            raise ConfigError(
                f"--think-end-token: texts are read without the tokenizer's special tokens, of which {end} is one: "
                f"give its id, {tokenizer.convert_tokens_to_ids(end)}."
            )

    def _answer(
        self, pairs: Iterator[Pair], prompts: Iterator[Prompt], tasks: LoadedTasks, tokenizer: Any
    ) -> np.ndarray:
        context, config = self._context, self._context.config

        def write(folder: Path) -> Fingerprint:
            write_continuations(folder, pairs, max_length=self._base.max_length)
            write_prompts(folder, prompts, max_length=self._base.max_length + self._target.extra_tokens)
            for text in tasks.notices.lines():  # before anything is sent
                print(f"notice: {text}", file=self._terminal[1], flush=True)
            own = {"tokenizer": tokenizer_digest(tokenizer), **tasks.identity(), **config.of_results()}
            return Fingerprint(own)

        try:
            with redirect_stdout(self._terminal[0]), redirect_stderr(self._terminal[1]):  # within `quiet` all the same
                tasks.say_replaced()
                self._answered = answer_requests(
                    context, self._base, self._target, write, self._terminal[1], self._judge
                )
        except Exception as error:
            self._broken = error
            raise
        if self._answered is None:
            raise AlreadyComplete("")
        context.stop.interrupt_again()  # metrics and their standard errors may take a while
        return self._answered.answers

    def _finish(
        self, found: dict[str, Any], loaded: LoadedTasks, tracker: EvaluationTracker, tokenizer: Any
    ) -> HarnessResults | None:
        from dist_eval.harness.tasks import save

        context, answered = self._context, self._answered
        assert answered is not None, "the harness has asked for no answer"
        tasks = task_results(found, loaded.aggregations(), self._undefined, context.config.confidence)
        results = HarnessResults(
            **answered.sections(context, self._base, tokenizer_digest(tokenizer)),
            tasks=tasks,
            groups=group_results(found),
            harness_version=str(found["lm_eval_version"]),
            files=save(tracker, found, context.folder.path),
            notices=loaded.notices.lines(),
        )
        return publish_results(context, results)
