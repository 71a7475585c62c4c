"""Generates a text after each prompt of a dataset, and compares it with references."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.analysis.options import columns_asked_for
from dist_eval.analysis.texts import mean_metrics, measure_texts, text_slices
from dist_eval.arguments.fields import flag
from dist_eval.data.continuations import write_continuations
from dist_eval.data.generation import text_of
from dist_eval.data.labelled_rows import LabelledRows
from dist_eval.data.prompted_rows import PromptedRows, references_in
from dist_eval.data.prompts import Template
from dist_eval.data.selection import select_rows
from dist_eval.data.tokenizers import HAS_BOS, load_tokenizer, token_ids, tokenizer_digest
from dist_eval.distributed.tracked_progress import Scored
from dist_eval.errors import ConfigError
from dist_eval.evaluation.inputs import (
    analysis_of,
    examples_before,
    frame_of,
    require_room_after,
    selection_identity,
    selection_of,
)
from dist_eval.evaluation.job import Answered, Context, Scorer, answer
from dist_eval.evaluation.printing import announce_selection, show_results
from dist_eval.evaluation.requests import RequestJob, Requests
from dist_eval.evaluation.rescoring import rescore
from dist_eval.evaluation.worker import FailurePolicy
from dist_eval.metrics.metric_loading import load_text_metrics, name_of_spec
from dist_eval.model.generation_config import GenerationSettings
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.prompts import PromptOptions
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL
from dist_eval.record import Reasons
from dist_eval.results.inputs import Decoding, FailedExample
from dist_eval.results.run import CompleteTasksRun
from dist_eval.results.tasks import PromptedDataset, TaskResults, TasksFiles, TasksResults
from dist_eval.runs.files import PREDICTIONS
from dist_eval.runs.fingerprint import DRAWS, Fingerprint
from dist_eval.runs.saved_samples import Texts, read_texts
from dist_eval.tables import format_count


class Generation(RequestJob):
    """Generates a text after each prompt of a dataset, and compares it with references.

    Only the leader has the prompts, and how texts are generated and measured.
    """

    rows: PromptedRows  # the prompts, once they are written

    def __init__(self, config: EvaluationConfig) -> None:
        super().__init__(config)
        self.audit, self.failures = config.audit, FailurePolicy.of(config)

    def prepare(self) -> None:
        """Reads the tokenizer and the files that the options name, except the dataset."""
        config = self.config
        self.metrics = load_text_metrics(config.metric, tuple(Texts.TYPES))  # of each text
        # finds the answer in a text; None if the whole text is the answer
        self.pattern = re.compile(config.answer_pattern) if config.answer_pattern else None
        self.tokenizer = load_tokenizer(self.base.name)  # the model's
        if self.tokenizer("a")["input_ids"][-1] == self.tokenizer.eos_token_id:
            raise ConfigError(
                "The tokenizer adds its EOS token to every prompt, so no text can follow: set "
                "add_eos_token to false in the model's tokenizer_config.json."
            )
        self._template = Template(str(config.prompt))
        sampling: dict[str, Any] = (
            {"top_k": config.top_k, "top_p": config.top_p, "seed": config.seed} if config.temperature else {}
        )
        # how texts are generated
        self.decoding = Decoding(
            max_new_tokens=config.max_new_tokens,
            stop=config.stop,
            temperature=config.temperature,
            settings=GenerationSettings(self.base.name).of_logits(),
            **sampling,
        )
        self._max_length = self.base.max_length + self.target.extra_tokens
        if self._max_length <= config.max_new_tokens:
            raise ConfigError(
                f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt in the {self._max_length} "
                "tokens that can be sent: give fewer, or a larger --max-length."
            )
        self._few_shot_rows, self._before = examples_before(
            config.select(PromptOptions), config.label_column, self._template, self.tokenizer
        )
        self._frame = frame_of(config.select(PromptOptions), self.tokenizer)
        framed = self._frame.around(self._before)
        tokens = len(token_ids(self.tokenizer, [framed])[0][0]) if self._before else 0
        longest_prompt = self._max_length - config.max_new_tokens
        require_room_after(config.few_shot, tokens, longest_prompt, " beside --max-new-tokens")

    def lead(self, context: Context) -> None:
        answered = answer(self, context)
        if answered is None:
            self._analysis = analysis_of(self.config, self.rows)
            rescore(context.folder, self.config, read_texts, self._rescored)
        else:
            self._finish(answered, context)

    def _labelled_rows(self) -> LabelledRows:
        config = self.config
        return LabelledRows(
            config.dataset or (),
            self._template.columns,
            config.label_column,
            (),
            numbers=True,
            subset=config.subset,
            split=config.split,
        )

    def read_rows(self) -> Iterator[int]:
        data = self._labelled_rows()
        source = data.open()
        yield from data.read(source, lambda column, first: references_in(source, data.label_column, column, first))

    def write_requests(self, folder: Path) -> None:
        """Reads the dataset, and writes its prompts to a folder for `Requests` to open."""
        config, data = self.config, self._labelled_rows()
        selection = selection_of(config, config.confidence, SINGLE_LABEL)  # an exact match is right or wrong
        self.rows = PromptedRows(
            data,
            self._template,
            self.tokenizer,
            folder,
            before=self._before,
            frame=self._frame,
            selected=select_rows(selection, data) if selection else None,
            extra_columns=columns_asked_for(config.slice_by, config.group_column),
        )
        write_continuations(folder, [], max_length=self.base.max_length)
        self.rows.write(
            self.decoding, max_length=self._max_length, vocab_size=self.base.config.vocab_size, strict=config.strict
        )

    def begin(self, data: Requests) -> None:
        self._analysis = analysis_of(self.config, self.rows)
        announce_selection(self.config, self.rows.selection)

    def identity(self) -> Fingerprint:
        values = {
            "tokenizer": tokenizer_digest(self.tokenizer),
            "--prompt": self._frame.around(self._template.text),
            **({"few-shot examples": str(self._few_shot_digest)} if self._before else {}),
            **selection_identity(self.rows.selection),
            "dataset": self.rows.digest(),
            "decoding": self.decoding.model_dump_json(),
            "references": self.rows.references_digest(),
            **self._draws,
        }
        columns = {f"column {name!r}": digest for name, digest in self.rows.column_digests().items()}
        return Fingerprint(values, {"dataset": columns})

    @property
    def _draws(self) -> dict[str, str]:
        """Tells texts of a sample from those of earlier versions, which drew them by positions in the sample."""
        is_sample = self.rows.selection is not None and self.rows.selection.method != "first"
        return {DRAWS: "by row"} if is_sample and self.decoding.temperature else {}

    def dataset(self) -> PromptedDataset:
        """Returns the section `dataset` of `results.json`."""
        rows = self.rows
        return PromptedDataset(
            source=rows.source.name,
            is_path=rows.source.is_path,
            template=self._frame.around(self._template.text),
            reference_column=self.config.label_column,
            references_digest=rows.references_digest(),
            column_digests=rows.column_digests(),
            selection=rows.selection,
            few_shot_rows=self._few_shot_rows,
            few_shot_digest=self._few_shot_digest,
        )

    @property
    def _few_shot_digest(self) -> str | None:
        return hashlib.sha256(self._before.encode()).hexdigest() if self._before else None

    def scorer(self, data: Requests) -> Scorer:
        metric, *_ = self.metrics

        def scored(positions: np.ndarray, answers: np.ndarray) -> Scored:
            texts, _ = measure_texts(self._texts(positions, answers), [metric], self.pattern)
            return {f"{self.config.run_name}/{metric.name}": texts.values[metric.name]}

        return scored

    def _texts(self, positions: np.ndarray, answers: np.ndarray) -> Texts:
        return Texts(
            index=self.rows.rows_at(positions),
            references=[self.rows.references[position] for position in positions.tolist()],
            text=[
                text_of(answer["tokens"][: answer["length"]].tolist(), self.decoding.stop, self.tokenizer)
                for answer in answers
            ],
            values={},
        )

    def _finish(self, answered: Answered[Requests, np.ndarray], context: Context) -> None:
        """Measures the texts, and writes and shows the results."""
        config, rows = self.config, self.rows
        sections = self.sections(answered, context, tokenizer_digest(self.tokenizer))
        texts = self._texts(answered.found["index"], answered.found)
        texts, undefined = measure_texts(self._analysis.grouped(texts), self.metrics, self.pattern)
        results = TasksResults(
            **sections,
            **self._scores(config.run_name, self.dataset(), texts, undefined),
            groups={},
            harness_version=None,
            files=TasksFiles(results=None, samples={config.run_name: PREDICTIONS}),
            failures=[
                FailedExample(index=rows.source.row(position), reason=why) for position, why in answered.work.failed
            ],
        )
        context.folder.complete(texts, results)
        show_results(context.folder, config)

    def _scores(self, name: str, dataset: PromptedDataset, texts: Texts, undefined: Reasons) -> dict[str, Any]:
        """Returns the sections of `results.json` that depend on metrics, pattern and analysis options."""
        unmatched = None if texts.answer is None else texts.answer.count(None)
        metrics = mean_metrics(texts, undefined, self._analysis)
        task = TaskResults(version="", num_fewshot=self.config.few_shot, documents=len(texts), metrics=metrics)
        groups = self._analysis.groups_summary(texts)
        return {
            "tasks": {name: task},
            "slices": text_slices(texts, undefined, self._analysis),
            "dataset": dataset.model_copy(update={"unmatched": unmatched, "groups": groups}),
            "notices": self._notices(texts),
        }

    def _notices(self, texts: Texts) -> list[str]:
        notices = []
        if self.rows.with_begin:
            notices.append(f"{format_count(self.rows.with_begin, 'prompt has', 'prompts have')} {HAS_BOS}")
        if texts.answer is None and (empty := sum(not text.strip() for text in texts.text)):
            are = format_count(empty, "text is", "texts are")
            notices.append(f"{are} empty, which counts as a wrong answer unless a reference is also empty")
        if unmatched := (texts.answer or []).count(None):
            have = format_count(unmatched, "text has", "texts have")
            notices.append(f"{have} no match of --answer-pattern, which counts as a wrong answer")
        drawing = [flag(name) for name in ("top_k", "top_p", "seed") if self.config.is_given(name)]
        if drawing and not self.config.temperature:
            notices.append(f"{' and '.join(drawing)}: without effect, because --temperature is 0")
        return notices

    def _rescored(self, results: CompleteTasksRun, texts: Texts) -> tuple[CompleteTasksRun, Texts]:
        """Returns newly scored results, and the texts with their groups and values."""
        config, recorded = self.config, results.config.get("metric") or []
        assert results.dataset is not None and isinstance(recorded, list), "the folder holds this very run"
        [(name, task)] = results.tasks.items()
        specs = list({name_of_spec(spec): spec for spec in (*recorded, *config.metric)}.values())
        has_new_pattern = results.config.get("answer_pattern") != config.answer_pattern
        # the table has the values of the others
        metrics = load_text_metrics(specs, tuple(Texts.TYPES)) if has_new_pattern else self.metrics
        computed = {metric.name for metric in metrics}
        texts, failed = measure_texts(self._analysis.grouped(texts), metrics, self.pattern)
        undefined = {
            metric.metric: metric.interval.reason or ""
            for metric in task.metrics
            if metric.value is None and metric.metric not in computed
        }
        scores = self._scores(name, results.dataset, texts, undefined | failed)
        return results.model_copy(update=scores), texts
