"""One run on prompts after which a language model generates texts, from its configuration to its report."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dist_eval.data.continuations import write_continuations
from dist_eval.data.generated_text import text_of
from dist_eval.data.generation import write_prompts
from dist_eval.data.labelled_rows import texts_in
from dist_eval.data.prompts import Template
from dist_eval.data.readers import open_rows
from dist_eval.data.references import references_in
from dist_eval.data.tokenizers import ONE_BEGINNING, load_tokenizer, token_ids, tokenizer_digest
from dist_eval.errors import ConfigError, DataError
from dist_eval.evaluation.requests import (
    Answered,
    RequestContext,
    answer_requests,
    publish_results,
    run_with_leader,
)
from dist_eval.metrics.exact_match import NORMALIZED, RAW, exact_match
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.language_model import CausalModel
from dist_eval.results.harness import (
    HarnessFiles,
    HarnessResults,
    PromptedDataset,
    TaskMetric,
    TaskResults,
)
from dist_eval.results.inputs import Decoding
from dist_eval.runs.files import PREDICTIONS
from dist_eval.runs.saved_samples import SavedText
from dist_eval.statistics.documents import document_interval
from dist_eval.tables import format_count


def generate_run(context: RequestContext) -> HarnessResults | None:
    """Generates a text after each prompt of a dataset, and compares it with references; every rank calls it.

    Args:
        context: this rank's part of the run, not yet opened.

    Returns:
        On the leader the sections of `results.json`, else None.

    Raises:
        EvaluationError: the run failed; on the rank that has the root cause.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    return run_with_leader(context, lambda *own: _GenerationRun(*own).run())


class _GenerationRun:
    """The leader's part: it reads the dataset."""

    def __init__(self, context: RequestContext, base: BaseModelSpec, target: CausalModel) -> None:
        self._context, self._base, self._target, config = context, base, target, context.config
        self._tokenizer = load_tokenizer(base.name)
        if self._tokenizer("a")["input_ids"][-1] == self._tokenizer.eos_token_id:
            raise ConfigError(
                "The tokenizer ends every prompt with its token for the end, after which no text can follow: set "
                "add_eos_token to false in the model's tokenizer_config.json."
            )
        self._template = Template(str(config.prompt))
        sampling = {"top_k": config.top_k, "top_p": config.top_p, "seed": config.seed} if config.temperature else {}
        self._decoding = Decoding(
            max_new_tokens=config.max_new_tokens, stop=config.stop, temperature=config.temperature, **sampling
        )
        self._max_length = base.max_length + target.extra_tokens
        if self._max_length <= config.max_new_tokens:
            raise ConfigError(
                f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt in the {self._max_length} "
                "tokens that can be sent: give fewer, or a larger --max-length."
            )
        self._references: list[list[str]] = []
        self._with_begin = 0  # prompts
        self._digest = hashlib.sha256()  # of the prompts
        self._source = open_rows(
            config.dataset or (),
            [*self._template.columns, config.label_column],
            subset=config.subset,
            split=config.split,
        )

    def run(self) -> HarnessResults | None:
        """Has the texts generated; writes and prints the results."""
        answered = answer_requests(self._context, self._base, self._target, self._write, sys.stderr)
        if answered is None:
            return publish_results(self._context)
        texts = self._texts(answered)
        return publish_results(self._context, self._results(answered, texts), texts)

    def _write(self, folder: Path) -> dict[str, str]:
        write_continuations(folder, [], max_length=self._base.max_length)
        write_prompts(folder, self._prompts(), max_length=self._max_length)
        if not self._references:
            raise DataError(f"{self._source.name} has no rows: there is nothing to evaluate.")
        return {
            "tokenizer": tokenizer_digest(self._tokenizer),
            "--prompt": str(self._context.config.prompt),
            "dataset": self._digest.hexdigest(),
            "decoding": self._decoding.model_dump_json(),
            "references": self._references_digest(),
        }

    def _prompts(self) -> Iterator[tuple[list[int], Decoding]]:
        config, source, columns = self._context.config, self._source, self._template.columns
        room = self._max_length - self._decoding.max_new_tokens
        for batch in self._source.batches:
            first = len(self._references)
            texts = [texts_in(source, column, batch.column(i), first, True) for i, column in enumerate(columns)]
            self._references += references_in(source, config.label_column, batch.column(len(columns)), first)
            prompts = [text + self._template.space for text in self._template.fill(texts)]
            self._digest.update(json.dumps(prompts).encode())
            tokenized, begun = token_ids(self._tokenizer, prompts)
            self._with_begin += int(begun.sum())
            for row, ids in enumerate(tokenized, start=first):
                problem = ""
                if not ids:
                    problem = "the prompt is empty, it has no tokens"
                elif config.strict and len(ids) > room:
                    problem = (
                        f"the prompt has {len(ids)} tokens, more than the {room} that --max-length leaves beside "
                        "--max-new-tokens, and --strict forbids to cut it"
                    )
                elif max(ids) >= self._base.config.vocab_size:
                    problem = (
                        f"the tokenizer gives the token id {max(ids)}, but the model knows only "
                        f"{self._base.config.vocab_size} ids: it belongs to another model"
                    )
                if problem:
                    raise DataError(f"{source.where(row)}: {problem}.")
                yield ids, self._decoding

    def _texts(self, answered: Answered) -> list[SavedText]:
        rows = []
        for index, (answer, references) in enumerate(zip(answered.answers, self._references, strict=True)):
            tokens = answer["tokens"][: answer["length"]].tolist()
            text = text_of(tokens, self._decoding.stop, self._tokenizer)
            rows.append(SavedText(index, references, text, *exact_match(text, references)))
        return rows

    def _results(self, answered: Answered, texts: list[SavedText]) -> HarnessResults:
        config, name = self._context.config, self._context.config.run_name
        figures: dict[str, list[Any]] = {
            NORMALIZED: [int(text.exact_match) for text in texts],
            RAW: [int(text.exact_match_raw) for text in texts],
        }
        metrics = []
        for metric, values in figures.items():
            value = sum(values) / len(values)
            interval = document_interval(values, value, "mean", config.confidence)
            metrics.append(
                TaskMetric(
                    metric=metric,
                    filter="none",
                    value=value,
                    documents=len(values),
                    aggregation="mean",
                    interval=interval,
                    higher_is_better=True,
                )
            )
        return HarnessResults(
            **answered.sections(self._context, self._base, tokenizer_digest(self._tokenizer)),
            tasks={name: TaskResults(version="", num_fewshot=0, documents=len(texts), metrics=metrics)},
            groups={},
            harness_version=None,
            dataset=PromptedDataset(
                source=self._source.name,
                is_path=self._source.is_path,
                template=self._template.text,
                reference_column=config.label_column,
                references_digest=self._references_digest(),
            ),
            files=HarnessFiles(results=None, samples={name: PREDICTIONS}),
            notices=[f"{format_count(self._with_begin, 'prompt has', 'prompts have')} {ONE_BEGINNING}"]
            if self._with_begin
            else [],
        )

    def _references_digest(self) -> str:
        return hashlib.sha256(json.dumps(self._references).encode()).hexdigest()
