"""A run on tasks of the lm-evaluation-harness, from its configuration to its report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_eval.data.continuations import write_continuations
from dist_eval.data.generation import write_prompts
from dist_eval.data.tokenizers import load_tokenizer, tokenizer_digest
from dist_eval.errors import ConfigError, DataError, EvaluationError
from dist_eval.evaluation.job import Context, answer
from dist_eval.evaluation.printing import announce_complete, show_results
from dist_eval.evaluation.requests import RequestJob, Requests
from dist_eval.harness.metrics import group_results, task_results
from dist_eval.model.generation_config import GenerationSettings
from dist_eval.options.harness import HarnessConfig, require_harness
from dist_eval.process.programs import notify
from dist_eval.results.tasks import TasksResults
from dist_eval.runs.fingerprint import Fingerprint

if TYPE_CHECKING:
    from lm_eval.loggers import EvaluationTracker

    from dist_eval.harness.language_model import Pair, Prompt


def _require_model(config: HarnessConfig) -> None:
    """Refuses the harness' name of a kind of model as the model."""
    from lm_eval.models import MODEL_MAPPING

    if config.model in MODEL_MAPPING and not Path(str(config.model)).exists():
        raise ConfigError(
            f"--model {config.model}: here it is the language model itself, a folder or hub name (in the harness "
            "--model_args pretrained=MODEL)."
        )


class AlreadyComplete(EvaluationError):
    """The run's folder already holds this run, complete."""


class HarnessTasks(RequestJob):
    """Evaluates a language model on tasks of the harness, which the leader runs."""

    def __init__(self, config: HarnessConfig) -> None:
        require_harness()
        _require_model(config)
        super().__init__(config)
        self._terminal = sys.stdout, sys.stderr
        self.stream, self.unit = sys.stderr, "request"
        self._broken: Exception | None = None
        self._is_answered = False

    def prepare(self) -> None:
        from dist_eval.harness.finding import find_tasks
        from dist_eval.harness.notices import Notices

        self._tokenizer = self._load_tokenizer()
        self._notices = Notices()
        self._found = find_tasks(self.config, self._notices)

    def lead(self, context: Context) -> None:
        """Runs the harness and answers its requests; writes and shows the results."""
        from lm_eval.loggers import EvaluationTracker

        from dist_eval.harness.language_model import HarnessModel
        from dist_eval.harness.tasks import LoadedTasks

        config = self.config
        self._tasks = LoadedTasks.load(config, self._found, self._notices)
        model = HarnessModel(
            self._tokenizer,
            list(self._tasks.tasks.values()),
            partial(self._answer, context),
            max_length=self.base.max_length + self.target.extra_tokens,
            vocab_size=self.base.config.vocab_size,
            strict=config.strict,
            seed=config.seed,
            think_end=config.think_end,
            template_options=config.template_options | self._chosen_template(),
            generation=lambda: GenerationSettings(self.base.name),
            say=self._tasks.notices.say,
        )
        tracker = EvaluationTracker(output_path=str(context.folder.path / "results.json"))
        try:
            found = self._tasks.run(model, tracker)
        except AlreadyComplete:
            announce_complete(context.folder)
            show_results(context.folder, config, are_new=False, with_speed=False)
        except DataError as error:
            if self._broken is not None:  # the cause is not in the tasks
                raise self._broken from None
            if not self._is_answered:
                raise
            raise DataError(
                f"{str(error).removesuffix('.')}. All answers are in the journal: correct the task, such as its "
                "metric_list, and start the same command again."
            ) from error
        else:
            self._finish(found, tracker, context)

    def _load_tokenizer(self) -> Any:
        tokenizer = load_tokenizer(self.base.name)
        if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
            raise ConfigError(
                f"The tokenizer of {self.base.name} has no token that begins or ends a text, which is needed for an "
                "empty context: name one in its tokenizer_config.json, as bos_token or eos_token."
            )
        if self.config.apply_chat_template and not tokenizer.chat_template:
            raise ConfigError(
                f"--apply-chat-template: the tokenizer of {self.base.name} has no chat template. Name a model that "
                "was tuned for chats, or leave the option out."
            )
        self._check_think_end(tokenizer)
        return tokenizer

    def _chosen_template(self) -> dict[str, str]:
        """Returns the tokenizer's arguments that choose one of several chat templates."""
        name, templates = self.config.chat_template, self._tokenizer.chat_template
        if not self.config.apply_chat_template or (name is None and not isinstance(templates, dict)):
            return {}
        named = templates if isinstance(templates, dict) else {}
        if (name or "default") not in named:
            has = f"the chat templates {', '.join(named)}" if named else "a single chat template, without a name"
            raise ConfigError(f"--chat-template {name or 'is missing'}: the tokenizer has {has}.")
        return {"chat_template": name or "default"}

    def _check_think_end(self, tokenizer: Any) -> None:
        end, known = self.config.think_end, self.base.config.vocab_size
        if isinstance(end, int) and end >= known:
            raise ConfigError(f"--think-end-token {end}: the model knows only {known} ids.")
        if end in tokenizer.all_special_tokens:
            raise ConfigError(
                f"--think-end-token: {end} is one of the tokenizer's special tokens, which are removed from texts: "
                f"give its id, {tokenizer.convert_tokens_to_ids(end)}."
            )

    def _answer(self, context: Context, pairs: Iterator[Pair], prompts: Iterator[Prompt]) -> np.ndarray:
        self._requests = pairs, prompts
        try:
            with redirect_stdout(self._terminal[0]), redirect_stderr(self._terminal[1]):  # despite `quiet`
                self._tasks.say_replaced()
                answered = answer(self, context)
        except Exception as error:
            self._broken = error
            raise
        if answered is None:
            raise AlreadyComplete("")
        self._sections = self.sections(answered, context, tokenizer_digest(self._tokenizer))
        self._is_answered = True
        context.stop.interrupt_again()  # metrics and their standard errors may take a while
        return answered.found

    def write_requests(self, folder: Path) -> None:
        pairs, prompts = self._requests
        write_continuations(folder, pairs, max_length=self.base.max_length)
        write_prompts(folder, prompts, max_length=self.base.max_length + self.target.extra_tokens)

    def begin(self, data: Requests) -> None:
        for text in self._tasks.notices.lines():
            notify(text, self._terminal[1])

    def identity(self) -> Fingerprint:
        tokenizer = tokenizer_digest(self._tokenizer)
        return Fingerprint({"tokenizer": tokenizer, **self._tasks.identity(), **self.config.of_results()})

    def _finish(self, found: dict[str, Any], tracker: EvaluationTracker, context: Context) -> None:
        from dist_eval.harness.tasks import save

        tasks = task_results(found, self._tasks.aggregations(), self.config.confidence)
        results = TasksResults(
            **self._sections,
            tasks=tasks,
            groups=group_results(found),
            harness_version=str(found["lm_eval_version"]),
            files=save(tracker, found, context.folder.path),
            notices=self._tasks.notices.lines(),
        )
        context.folder.complete(None, results)
        show_results(context.folder, self.config)
