"""Reads what options name: the classifier, its prompts and metrics, and the rows; tokenizes the dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dist_eval.analysis.options import AnalysisOptions
from dist_eval.data.chat import Frame
from dist_eval.data.dataset import TokenizedDataset, tokenize_dataset
from dist_eval.data.labelled_rows import LabelledRows, draw_examples
from dist_eval.data.prompted_rows import PromptedRows, draw_referenced
from dist_eval.data.prompts import PromptedWords, Template, join_texts
from dist_eval.data.selection import Selection, select_rows
from dist_eval.data.tokenizers import load_tokenizer
from dist_eval.errors import ConfigError, RunError, translating_os_errors
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric
from dist_eval.metrics.metric_loading import load_metrics, synthetic_predictions
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget, read_target, tokenizer_place
from dist_eval.model.label_words import LabelWords
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.model.pretrained_classifier import PretrainedClassifier
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import DataOptions, SelectionOptions
from dist_eval.options.prompts import PromptOptions
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.base_model.problem_types import REGRESSION, SINGLE_LABEL, Problem
from dist_eval.process.programs import notify
from dist_eval.results.inputs import SelectionMethod, SelectionSummary
from dist_eval.revisions import pinned
from dist_eval.statistics.sampling import examples_for_precision
from dist_eval.tables import format_count

BETWEEN_EXAMPLES = "\n\n"


def label_words_of(model: str, options: PromptOptions, data: DataOptions) -> LabelWords:
    """Reads the prompt, the label words and the examples that the options name."""
    config, template = read_base_config(model, pinned("model", model)), Template(str(options.prompt))
    if Path(model).is_dir():  # a hub model is read when it is loaded
        OutputEmbedding(model, config)
    names, words = zip(*(split_name(item) for item in options.label_words), strict=True)
    tokenizer = load_tokenizer(model)
    prompted = PromptedWords(template, words, tokenizer, options.label_delimiter, frame_of(options, tokenizer))
    rows: list[int] = []
    if options.few_shot:
        source = LabelledRows(
            options.few_shot_from or (), template.columns, data.label_column, names, data.labels, numbers=True
        )
        rows, examples = draw_examples(source, options.few_shot, options.few_shot_seed)
        shown = [prompted.with_words([[text] for text in texts], [number])[0] for texts, number in examples]
        prompted.put_before(shown, BETWEEN_EXAMPLES)
    return LabelWords(model, config, prompted, list(names), options.length_normalization, rows)


def frame_of(options: PromptOptions, tokenizer: Any) -> Frame:
    """Returns the system instruction and chat template around each prompt."""
    return Frame(tokenizer, options.system_instruction, is_chat=options.apply_chat_template)


def examples_before(
    options: PromptOptions, label_column: str, template: Template, tokenizer: Any
) -> tuple[list[int], str]:
    """Draws examples to put before each prompt with a reference: their rows in their file, and their text."""
    if not options.few_shot:
        return [], ""
    source = LabelledRows(options.few_shot_from or (), template.columns, label_column, (), numbers=True)
    rows, examples = draw_referenced(source, options.few_shot, options.few_shot_seed)
    shown = [
        template.fill([[text] for text in texts])[0] + (template.space or " ") + reference + BETWEEN_EXAMPLES
        for texts, reference in examples
    ]
    return rows, join_texts(shown, tokenizer.bos_token or "")


def require_room_after(examples: int, tokens: int, most: int, beside: str = "") -> None:
    """Checks that the tokens of few-shot examples leave room for a prompt."""
    if tokens >= most:
        raise ConfigError(
            f"The examples of --few-shot {examples} have {tokens} tokens, but a prompt may have {most}{beside}: "
            "no room is left for the question. Give fewer examples, or a larger --max-length."
        )


def split_name(item: str) -> tuple[str, str]:
    """Splits an item of `--label-words` into the name of the class and its word."""
    name, is_pair, word = item.partition("=")
    word = word if is_pair else name
    if not name.strip() or not word.strip():
        raise ConfigError(f"--label-words {item!r} should be a word, or NAME=WORD.")
    return name, word


def target_of(config: EvaluationConfig) -> EvalTarget:
    """Reads the classifier that the options name."""
    if config.prompt is None:
        return read_target(config.checkpoint, config.model)
    return label_words_of(str(config.model), config.select(PromptOptions), config.select(DataOptions))


def selection_of(options: SelectionOptions, confidence: float, problem: Problem) -> Selection | None:
    """Returns which rows the options select; None for all."""
    if options.stratify and problem is not SINGLE_LABEL:
        raise ConfigError(f"--stratify needs rows of one class each, but this is a {problem.name}: leave it out.")
    if options.precision is not None and problem is REGRESSION:
        raise ConfigError("--precision is about the share of right answers, and a regression has none: give --sample.")
    limit, sample, precision = options.limit, options.sample, options.precision
    if limit is not None:
        return Selection("first", lambda population: min(limit, population))
    method: SelectionMethod = "stratified" if options.stratify else "random"
    if sample is not None:
        return Selection(method, lambda population: sample, options.sample_seed)
    if precision is not None:
        needed = partial(examples_for_precision, precision, confidence)
        return Selection(method, needed, options.sample_seed, precision)
    return None


def selection_identity(selection: SelectionSummary | None) -> dict[str, str]:
    """Returns the part of a fingerprint about a selection of rows; empty if all rows are evaluated."""
    if selection is None:
        return {}
    return {
        "selection of rows": selection.model_dump_json(exclude={"column_digests"}),
        "texts of all rows": json.dumps(selection.column_digests),
    }


def find_metrics(names: Sequence[str], target: EvalTarget) -> list[CustomMetric]:
    """Loads the custom metrics, and tries them on synthetic predictions (see `load_metrics`)."""
    if not names:
        return []
    sample = synthetic_predictions(target.problem, target.num_labels)
    built_in = list(compute_metrics(sample, target.label_names).values)
    return load_metrics(names, target.problem, target.num_labels, built_in)


def labelled_rows(options: DataOptions, target: EvalTarget) -> LabelledRows:
    """Returns the dataset that the options name, for a classifier."""
    return LabelledRows(
        options.dataset or (),
        options.text_column,
        options.label_column,
        target.label_names,
        options.labels,
        target.problem,
        numbers=isinstance(target, LabelWords),
        subset=options.subset,
        split=options.split,
    )


def write_dataset(
    folder: Path,
    options: DataOptions,
    base: BaseModelSpec,
    target: EvalTarget,
    extra_columns: Sequence[str] = (),
    selection: Selection | None = None,
) -> None:
    """Tokenizes the dataset, or only the rows of `selection`, into an empty folder.

    `base` gives the limits, and the tokenizer unless the checkpoint has its own. `target` is evaluated or tuned.
    `extra_columns` are kept besides texts and labels, such as groups.
    """
    place = tokenizer_place(base.name, target)
    has_own = target.folder is None or place == str(target.folder)
    also = "" if has_own else f" (the checkpoint {target.folder} has none of its own)"
    tokenizer = load_tokenizer(place, also)
    prompted = target.prompted if isinstance(target, LabelWords) else None
    if prompted:
        tokenizer.truncation_side = "left"  # the end of a prompt asks the question
    data = labelled_rows(options, target)
    selected = select_rows(selection, data) if selection else None
    advice = "Nothing was lost. Free some space, or name another place with the environment variable TMPDIR."
    with translating_os_errors(RunError, f"The tokenized dataset cannot be written to {folder}", advice):
        written = tokenize_dataset(
            data,
            folder,
            tokenizer=tokenizer,
            max_length=base.max_length,
            vocab_size=getattr(base.config, "vocab_size", None),
            token_types=target.token_types if isinstance(target, PretrainedClassifier) else 0,
            begin_once=not isinstance(target, PretrainedClassifier),  # it was trained on what its tokenizer makes
            strict=options.strict,
            extra_columns=extra_columns,
            render=prompted.render if prompted else None,
            selected=selected,
        )
    if base.is_cut_by_tokenizer and written.facts.truncated:
        notify(
            f"{format_count(written.facts.truncated, 'text is', 'texts are')} cut to {base.max_length} tokens, the "
            f"model_max_length of the tokenizer in {place}. The model itself takes more: --max-length N."
        )


def analysis_of(config: EvaluationConfig, data: TokenizedDataset | PromptedRows) -> AnalysisOptions:
    """Returns the options of the analysis, with the columns of the data that they name."""
    return AnalysisOptions.of(
        data, confidence=config.confidence, slice_by=config.slice_by, group_column=config.group_column
    )
