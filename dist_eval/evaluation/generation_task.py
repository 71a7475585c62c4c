"""What a run with `--generate` asks of a model: prompts made of a dataset's rows, and how texts follow them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from dist_eval.analysis.options import columns_asked_for
from dist_eval.data.continuations import write_continuations
from dist_eval.data.labelled_rows import LabelledRows
from dist_eval.data.problem_types import SINGLE_LABEL
from dist_eval.data.prompted_rows import PromptedRows
from dist_eval.data.prompts import Template
from dist_eval.data.selection import select_rows
from dist_eval.data.tokenizers import load_tokenizer, token_ids, tokenizer_digest
from dist_eval.errors import ConfigError
from dist_eval.evaluation.task import examples_before, selection_identity, selection_of
from dist_eval.metrics.metric_loading import load_text_metrics
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.language_model import CausalModel
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.prompts import PromptOptions
from dist_eval.results.harness import PromptedDataset
from dist_eval.results.inputs import Decoding
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.saved_samples import SavedTexts


class GenerationTask:
    """Prompts, decoding and metrics; the tokenizer and the files that the options name are read, but for the dataset.

    Args:
        config: the run's options.
        base: the base model.
        target: the language model.

    Attributes:
        metrics: of each text.
        pattern: what finds the answer in a text; None if the text is the answer.
        tokenizer: the model's.
        decoding: how texts are generated.
        rows: the prompts, once `write` has written them.

    Raises:
        ConfigError: an option does not fit the model, or a metric cannot be used.
        DataError: an example for the prompts cannot be read.
    """

    rows: PromptedRows

    def __init__(self, config: EvaluationConfig, base: BaseModelSpec, target: CausalModel) -> None:
        self._config, self._base = config, base
        self.metrics = load_text_metrics(config.metric, SavedTexts.OWN_COLUMNS)
        self.pattern = re.compile(config.answer_pattern) if config.answer_pattern else None
        self.tokenizer = load_tokenizer(base.name)
        if self.tokenizer("a")["input_ids"][-1] == self.tokenizer.eos_token_id:
            raise ConfigError(
                "The tokenizer ends every prompt with its token for the end, after which no text can follow: set "
                "add_eos_token to false in the model's tokenizer_config.json."
            )
        self._template = Template(str(config.prompt))
        sampling: dict[str, Any] = (
            {"top_k": config.top_k, "top_p": config.top_p, "seed": config.seed} if config.temperature else {}
        )
        self.decoding = Decoding(
            max_new_tokens=config.max_new_tokens, stop=config.stop, temperature=config.temperature, **sampling
        )
        self._max_length = base.max_length + target.extra_tokens
        if self._max_length <= config.max_new_tokens:
            raise ConfigError(
                f"--max-new-tokens {config.max_new_tokens} leaves no room for a prompt in the {self._max_length} "
                "tokens that can be sent: give fewer, or a larger --max-length."
            )
        self._few_shot_rows, self._before = examples_before(
            config.select(PromptOptions), config.label_column, self._template, self.tokenizer
        )
        self._require_room_after_examples()

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a prompt."""
        return self._max_length - self.decoding.max_new_tokens

    def _require_room_after_examples(self) -> None:
        tokens = len(token_ids(self.tokenizer, [self._before])[0][0]) if self._before else 0
        if tokens >= self.longest_prompt:
            raise ConfigError(
                f"The examples of --few-shot {self._config.few_shot} have {tokens} tokens, and a prompt may have "
                f"{self.longest_prompt} beside --max-new-tokens: nothing would be left of them. Give fewer, or a "
                "larger --max-length."
            )

    def write(self, folder: Path) -> None:
        """Reads the dataset, and writes its prompts to a folder, as `Requests` opens them.

        Args:
            folder: an existing folder.

        Raises:
            DataError: the dataset cannot be read, or is empty; the message names the row.
        """
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
        self.rows = PromptedRows(
            data,
            self._template,
            self.tokenizer,
            folder,
            before=self._before,
            selected=select_rows(selection, data) if selection else None,
            extra_columns=columns_asked_for(config.slice_by, config.group_column),
        )
        write_continuations(folder, [], max_length=self._base.max_length)
        self.rows.write(
            self.decoding,
            max_length=self._max_length,
            vocab_size=self._base.config.vocab_size,
            strict=config.strict,
        )

    def fingerprint(self) -> Fingerprint:
        """Returns what the results depend on besides the token ids, by names for error messages."""
        values = {
            "tokenizer": tokenizer_digest(self.tokenizer),
            "--prompt": str(self._config.prompt),
            **({"few-shot examples": str(self._few_shot_digest)} if self._before else {}),
            **selection_identity(self.rows.selection),
            "dataset": self.rows.digest(),
            "decoding": self.decoding.model_dump_json(),
            "references": self.rows.references_digest(),
        }
        return Fingerprint(values, {"dataset": self.rows.column_digests()})

    def dataset(self) -> PromptedDataset:
        """Returns the section `dataset` of `results.json`."""
        rows = self.rows
        return PromptedDataset(
            source=rows.source.name,
            is_path=rows.source.is_path,
            template=self._template.text,
            reference_column=self._config.label_column,
            references_digest=rows.references_digest(),
            selection=rows.selection,
            few_shot_rows=self._few_shot_rows,
            few_shot_digest=self._few_shot_digest,
        )

    @property
    def _few_shot_digest(self) -> str | None:
        return hashlib.sha256(self._before.encode()).hexdigest() if self._before else None
