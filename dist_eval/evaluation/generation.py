"""One run on prompts after which a language model generates texts, from its configuration to its report."""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_eval.analysis.options import columns_asked_for
from dist_eval.analysis.texts import mean_metrics, measure_texts, text_slices
from dist_eval.data.continuations import write_continuations
from dist_eval.data.generated_text import text_of
from dist_eval.data.labelled_rows import LabelledRows
from dist_eval.data.problem_types import SINGLE_LABEL
from dist_eval.data.prompted_rows import PromptedRows
from dist_eval.data.prompts import Template
from dist_eval.data.selection import select_rows
from dist_eval.data.tokenizers import ONE_BEGINNING, load_tokenizer, token_ids, tokenizer_digest
from dist_eval.errors import ConfigError, RunError, one_line
from dist_eval.evaluation.prompting import examples_before
from dist_eval.evaluation.requests import (
    Answered,
    RequestContext,
    answer_requests,
    publish_results,
    run_with_leader,
    show_results,
)
from dist_eval.evaluation.rescoring import ANALYSIS_OPTIONS, analysis_of, announce_selection, keep_recorded_analysis
from dist_eval.evaluation.task import selection_identity, selection_of
from dist_eval.evaluation.worker import FailurePolicy
from dist_eval.metrics.metric_loading import load_text_metrics, name_of_spec
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.language_model import CausalModel
from dist_eval.options.prompts import PromptOptions
from dist_eval.results.harness import HarnessFiles, HarnessResults, PromptedDataset, TaskResults
from dist_eval.results.inputs import Decoding, FailedExample
from dist_eval.results.record import Reasons
from dist_eval.results.run import CompleteHarnessRun
from dist_eval.runs.files import PREDICTIONS
from dist_eval.runs.saved_samples import SavedTexts, read_texts
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
        self._context, self._base, self._target = context, base, target
        self._config = config = keep_recorded_analysis(context)
        self._metrics = load_text_metrics(config.metric, SavedTexts.OWN_COLUMNS)
        self._pattern = None if config.answer_pattern is None else re.compile(config.answer_pattern)
        self._tokenizer = load_tokenizer(base.name)
        if self._tokenizer("a")["input_ids"][-1] == self._tokenizer.eos_token_id:
            raise ConfigError(
                "The tokenizer ends every prompt with its token for the end, after which no text can follow: set "
                "add_eos_token to false in the model's tokenizer_config.json."
            )
        self._template = Template(str(config.prompt))
        sampling: dict[str, Any] = (
            {"top_k": config.top_k, "top_p": config.top_p, "seed": config.seed} if config.temperature else {}
        )
        self._decoding = Decoding(
            max_new_tokens=config.max_new_tokens, stop=config.stop, temperature=config.temperature, **sampling
        )
        self._max_length = base.max_length + target.extra_tokens
        if self._max_length <= config.max_new_tokens:
            raise ConfigError(
                f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt in the {self._max_length} "
                "tokens that can be sent: give fewer, or a larger --max-length."
            )
        self._few_shot_rows, self._before = examples_before(
            config.select(PromptOptions), config.label_column, self._template, self._tokenizer
        )
        self._require_room_after_examples()

    def _require_room_after_examples(self) -> None:
        config, room = self._config, self._max_length - self._config.max_new_tokens
        tokens = len(token_ids(self._tokenizer, [self._before])[0][0]) if self._before else 0
        if tokens >= room:
            raise ConfigError(
                f"The examples of --few-shot {config.few_shot} have {tokens} tokens, and a prompt may have {room} "
                "beside --max-new-tokens: nothing would be left of them. Give fewer, or a larger --max-length."
            )

    def run(self) -> HarnessResults | None:
        """Has the texts generated; writes and prints the results."""
        answered = answer_requests(self._context, self._base, self._target, self._write, sys.stderr)
        if answered is None:
            return self._rescore()
        if failed := answered.work.failed:
            FailurePolicy.of(self._config).require_few(len(failed), answered.coverage.expected, failed[-1][1])
        texts, undefined = measure_texts(self._texts(answered), self._metrics, self._pattern)
        return publish_results(self._context, self._results(answered, texts, undefined), texts)

    def _write(self, folder: Path) -> dict[str, str]:
        config = self._config
        data = LabelledRows(
            config.dataset or (),
            self._template.columns,
            config.label_column,
            (),
            numbers=True,
            subset=config.subset,
            split=config.split,
        )
        selection = selection_of(config, config.confidence, SINGLE_LABEL)  # an exact match is right or wrong
        self._rows = rows = PromptedRows(
            data,
            self._template,
            self._tokenizer,
            folder,
            before=self._before,
            selected=select_rows(selection, data) if selection else None,
            extra_columns=columns_asked_for(config.slice_by, config.group_column),
        )
        write_continuations(folder, [], max_length=self._base.max_length)
        rows.write(
            self._decoding,
            max_length=self._max_length,
            vocab_size=self._base.config.vocab_size,
            strict=config.strict,
        )
        self._analysis = analysis_of(config, rows)
        if not self._context.found_results:
            announce_selection(self._context, rows.selection)
        return {
            "tokenizer": tokenizer_digest(self._tokenizer),
            "--prompt": str(config.prompt),
            **({"few-shot examples": str(self._few_shot_digest)} if self._before else {}),
            **selection_identity(rows.selection),
            "dataset": rows.digest(),
            "decoding": self._decoding.model_dump_json(),
            "references": rows.references_digest(),
        }

    @property
    def _few_shot_digest(self) -> str | None:
        return hashlib.sha256(self._before.encode()).hexdigest() if self._before else None

    def _texts(self, answered: Answered) -> SavedTexts:
        texts = SavedTexts(
            index=self._rows.rows_at(answered.index),
            references=[self._rows.references[position] for position in answered.index.tolist()],
            text=[
                text_of(answer["tokens"][: answer["length"]].tolist(), self._decoding.stop, self._tokenizer)
                for answer in answered.answers
            ],
            values={},
        )
        return self._grouped(texts)

    def _results(self, answered: Answered, texts: SavedTexts, undefined: Reasons) -> HarnessResults:
        config, rows = self._config, self._rows
        failed = [FailedExample(index=rows.source.row(position), reason=why) for position, why in answered.work.failed]
        dataset = PromptedDataset(
            source=rows.source.name,
            is_path=rows.source.is_path,
            template=self._template.text,
            reference_column=config.label_column,
            references_digest=rows.references_digest(),
            selection=rows.selection,
            few_shot_rows=self._few_shot_rows,
            few_shot_digest=self._few_shot_digest,
        )
        return HarnessResults(
            **answered.sections(self._context, self._base, tokenizer_digest(self._tokenizer)),
            **self._scores(config.run_name, dataset, texts, undefined),
            groups={},
            harness_version=None,
            files=HarnessFiles(results=None, samples={config.run_name: PREDICTIONS}),
            failures=failed,
        )

    def _scores(self, name: str, dataset: PromptedDataset, texts: SavedTexts, undefined: Reasons) -> dict[str, Any]:
        """Returns the sections of `results.json` that depend on metrics, pattern and the options of the analysis."""
        unmatched = None if texts.answer is None else texts.answer.count(None)
        metrics = mean_metrics(texts, undefined, self._analysis)
        task = TaskResults(version="", num_fewshot=self._config.few_shot, documents=len(texts), metrics=metrics)
        groups = self._analysis.groups_summary(texts)
        return {
            "tasks": {name: task},
            "slices": text_slices(texts, undefined, self._analysis),
            "dataset": dataset.model_copy(update={"unmatched": unmatched, "groups": groups}),
            "notices": self._notices(texts),
        }

    def _notices(self, texts: SavedTexts) -> list[str]:
        notices = []
        if self._rows.with_begin:
            notices.append(f"{format_count(self._rows.with_begin, 'prompt has', 'prompts have')} {ONE_BEGINNING}")
        if texts.answer is None and (empty := sum(not text.strip() for text in texts.text)):
            are = format_count(empty, "text is", "texts are")
            notices.append(f"{are} empty, which counts as a wrong answer unless a reference is empty, too")
        if unmatched := (texts.answer or []).count(None):
            have = format_count(unmatched, "text has", "texts have")
            notices.append(f"{have} no match of --answer-pattern, which counts as a wrong answer")
        return notices

    def _grouped(self, texts: SavedTexts) -> SavedTexts:
        return replace(texts, group=self._analysis.groups(texts))

    def _rescore(self) -> HarnessResults | None:
        """Shows a complete run; computes what is new in the options from its texts, if anything is."""
        config, folder = self._config, self._context.folder
        recorded = folder.task_results()
        assert recorded is not None and recorded.dataset is not None, "the folder holds this very run"
        has_new_pattern = recorded.config.get("answer_pattern") != config.answer_pattern
        is_new_analysis = any(recorded.config.get(name) != getattr(config, name) for name in ANALYSIS_OPTIONS)
        if not (config.metric or has_new_pattern or is_new_analysis):
            return show_results(self._context, are_new=False)
        [(name, task)] = recorded.tasks.items()
        specs = list({name_of_spec(spec): spec for spec in (*_metrics_of(recorded), *config.metric)}.values())
        # the values of others are in the table
        metrics = load_text_metrics(specs, SavedTexts.OWN_COLUMNS) if has_new_pattern else self._metrics
        computed = {metric.name for metric in metrics}
        texts, failed = measure_texts(self._grouped(self._saved()), metrics, self._pattern)
        undefined = {
            metric.metric: metric.interval.reason or ""
            for metric in task.metrics
            if metric.value is None and metric.metric not in computed
        }
        scores = self._scores(name, recorded.dataset, texts, undefined | failed)
        options = {option: getattr(config, option) for option in (*ANALYSIS_OPTIONS, "answer_pattern")}
        results = recorded.model_copy(
            update={**scores, "config": {**recorded.config, **options, "metric": specs}},
        )
        folder.revise_texts(results, texts)
        print(f"{folder.path} holds the texts of this very run: nothing was sent, its metrics are new.", flush=True)
        return show_results(self._context, are_new=True)

    def _saved(self) -> SavedTexts:
        path = self._context.folder.path / PREDICTIONS
        try:
            return read_texts(path)
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path} cannot be read: {one_line(error)}. --overwrite runs it again.") from error


def _metrics_of(run: CompleteHarnessRun) -> list[str]:
    """Returns the metrics that were asked for with `--metric`."""
    recorded: Any = run.config.get("metric")
    return recorded or []
