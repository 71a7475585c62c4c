"""What a run evaluates, with which metrics, on which dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_eval.data.dataset import TokenizedDataset, tokenize_dataset
from dist_eval.data.plan import Plan
from dist_eval.data.shared_prefixes import plan_with_sessions
from dist_eval.data.tokenizer_files import load_tokenizer
from dist_eval.errors import ConfigError, RunError, translating_os_errors
from dist_eval.evaluation.prompting import label_words_of
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric
from dist_eval.metrics.metric_loading import load_metrics, synthetic_predictions
from dist_eval.model.base_model_spec import BaseModelSpec, EvalTarget, read_target
from dist_eval.model.label_words import LabelWords
from dist_eval.model.pretrained_classifier import PretrainedClassifier
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import DataOptions, ModelOptions, PromptOptions
from dist_eval.runs.journal import Fingerprint


@dataclass(frozen=True)
class EvalTask:
    """A model and the metrics that are asked for.

    Attributes:
        base: the base model.
        target: what is evaluated.
        custom_metrics: the custom metrics.
    """

    base: BaseModelSpec
    target: EvalTarget
    custom_metrics: list[CustomMetric]

    @classmethod
    def of(cls, config: EvaluationConfig) -> EvalTask:
        """Reads the model's files and the metrics that the options name; nothing is loaded or sent yet.

        Raises:
            CheckpointError: there is no such checkpoint or model, or they do not fit together.
            ConfigError: an option does not fit the model, or a metric cannot be used.
        """
        target = target_of(config)
        base = BaseModelSpec.of(config.only(ModelOptions), target)
        if config.few_shot and isinstance(target, LabelWords):
            tokens = target.prompted.tokens_before()
            if tokens >= base.max_length:
                raise ConfigError(
                    f"The examples of --few-shot {config.few_shot} have {tokens} tokens, and a prompt may have "
                    f"{base.max_length}: nothing would be left of them. Give fewer, or a larger --max-length."
                )
        if base.adapter and config.compare_backends:
            raise ConfigError(f"--compare-backends has no local model with the adapter {base.adapter!r}: leave it out.")
        return cls(base, target, find_metrics(config.metric, target))

    def open_dataset(self, folder: Path) -> tuple[TokenizedDataset, Plan]:
        """Opens the tokenized dataset in a folder, and plans its batches."""
        data = TokenizedDataset(folder)
        return data, self.plan(data)

    def plan(self, data: TokenizedDataset, session_tokens: int = 0) -> Plan:
        """Plans the batches of a dataset (see `plan_with_sessions`)."""
        return plan_with_sessions(
            data.lengths,
            token_budget=self.base.token_budget,
            session_tokens=session_tokens,
            beginnings=data.beginnings(),
            prefix=self.target.extra_tokens,
            prompt_tokens=self.target.pre_seq_len,
            copies=self.target.forwards_per_text,
        )

    def fingerprint(self, config: EvaluationConfig, data: TokenizedDataset, plan: Plan) -> Fingerprint:
        """Returns the inputs and options that a run's results depend on, by names for error messages."""
        return Fingerprint(
            {
                **self.base.identity(),
                "prompt and label words" if config.prompt else "tuned checkpoint": self.target.digest(),
                "names of the classes": json.dumps(self.target.label_names),
                "problem_type": self.target.problem.name,
                "tokenizer": data.facts.tokenizer_digest,
                "dataset": data.facts.text_digest,
                "--max-length": str(data.facts.max_length),
                "--token-budget": str(self.base.token_budget),
                "--compression": config.compression,
                "--backend": config.backend,
                "token ids": data.facts.digest,
                "plan": plan.digest(),
            }
        )


def target_of(config: EvaluationConfig) -> EvalTarget:
    """Reads the classifier that the options name.

    Raises:
        CheckpointError: there is no such checkpoint or model, or they do not fit together.
        ConfigError: prompt or label words cannot be used.
        DataError: an example for the prompt cannot be read.
    """
    if config.prompt is None:
        return read_target(config.checkpoint, config.model)
    return label_words_of(str(config.model), config.only(PromptOptions), config.only(DataOptions))


def find_metrics(names: Sequence[str], target: EvalTarget) -> list[CustomMetric]:
    """Loads the custom metrics and tries them on synthetic predictions (see `load_metrics`)."""
    if not names:
        return []
    sample = synthetic_predictions(target.problem, target.num_labels)
    built_in = list(compute_metrics(sample, target.label_names).values)
    return load_metrics(names, target.problem, target.num_labels, built_in)


def write_dataset(
    folder: Path, options: DataOptions, base: BaseModelSpec, target: EvalTarget, extra_columns: Sequence[str] = ()
) -> None:
    """Tokenizes the dataset into a folder.

    Args:
        folder: an empty folder.
        options: the dataset and its columns.
        base: the base model, for its limits, and for its tokenizer unless the checkpoint has its own.
        target: what is evaluated or tuned.
        extra_columns: columns to keep besides texts and labels, such as groups.

    Raises:
        DataError: the dataset cannot be read, or a row is wrong.
        CheckpointError: there is no tokenizer.
        ConfigError: the model cannot take pairs of texts.
        RunError: the folder cannot be written.
    """
    own_tokenizer = target.folder is not None and (target.folder / "tokenizer_config.json").exists()
    place = str(target.folder) if own_tokenizer else base.name
    also = "" if own_tokenizer or not target.folder else f" (the checkpoint {target.folder} has none of its own)"
    tokenizer = load_tokenizer(place, also)
    prompted = target.prompted if isinstance(target, LabelWords) else None
    if prompted:
        tokenizer.truncation_side = "left"  # the end of a prompt asks the question
    if (
        isinstance(target, PretrainedClassifier)
        and len(options.text_column) == 2
        and "token_type_ids" in tokenizer.model_input_names
        and getattr(base.config, "type_vocab_size", 0) > 1
    ):
        raise ConfigError(
            f"--text-column names two columns, but {base.name} tells the texts of a pair apart by token types, which "
            "dist_eval does not pass on."
        )
    advice = "Nothing was lost. Free some space, or name another place with the environment variable TMPDIR."
    with translating_os_errors(RunError, f"The tokenized dataset cannot be written to {folder}", advice):
        tokenize_dataset(
            str(options.dataset),
            folder,
            tokenizer=tokenizer,
            text_columns=options.text_column,
            label_column=options.label_column,
            label_names=target.label_names,
            max_length=base.max_length,
            vocab_size=getattr(base.config, "vocab_size", None),
            labels=options.labels,
            problem=target.problem,
            strict=options.strict,
            extra_columns=extra_columns,
            render=prompted.render if prompted else None,
            subset=options.subset,
            split=options.split,
        )
