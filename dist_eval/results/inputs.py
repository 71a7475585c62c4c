"""What was evaluated: the dataset and its coverage, the model, the plan, the software."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from dist_eval.record import Count, Record

SelectionMethod = Literal["first", "random", "stratified"]


class Coverage(Record):
    """The proof that each example was counted exactly once."""

    expected: Count
    """Examples in the dataset."""
    seen: Count
    """Distinct examples of the dataset that have a prediction."""
    duplicates: Count
    """Predictions beyond the first one of their example."""
    missing: Count
    """Examples without a prediction."""
    failed: Count = 0
    """Missing examples that failed, each with a reason."""

    @property
    def exact(self) -> bool:
        """Whether every example has exactly one prediction."""
        return self.seen == self.expected and self.duplicates == 0 and self.missing == 0


class FailedExample(Record):
    """An example without a prediction."""

    index: Count
    """Row of the dataset."""
    reason: str
    """Why it has none."""


class ShardSummary(Record):
    """A file of a dataset that consists of several."""

    file: str
    """Name of the file, relative to the folder that all of them are in."""
    rows: Count
    """Number of its rows."""
    digest: str
    """SHA-256 of the file."""


class SelectionSummary(Record):
    """Which rows of a dataset were evaluated, if not all.

    The intervals of a random sample are for the metrics of all rows: they take into account how many of them were
    evaluated, unless examples are grouped (see dist_eval/statistics/README.md).
    """

    method: SelectionMethod
    """The first rows (first), or rows drawn without replacement: at random (random), or at random so that each class
    keeps its share (stratified)."""
    population: Count
    """Rows of the dataset."""
    rows: Count
    """Those that were selected."""
    seed: Count | None
    """Seed of the random draw, null for the first rows."""
    precision: Annotated[float, Field(gt=0, lt=0.5)] | None
    """With --precision: the largest half width of the interval of a share, which determines the number of rows."""
    column_digests: dict[str, str]
    """Hash of each column with texts over all rows of the dataset, by its name."""

    @property
    def sampling_fraction(self) -> float:
        """Share of the dataset's rows that a random sample has; 0 without one."""
        return self.rows / self.population if self.is_random else 0.0

    @property
    def is_random(self) -> bool:
        """Whether the rows are a random sample."""
        return self.method != "first"


class HashedColumns(Protocol):
    """Columns with texts of the rows that were evaluated."""

    column_digests: dict[str, str]
    selection: SelectionSummary | None


def have_same_columns(first: HashedColumns, other: HashedColumns) -> bool | None:
    """Returns whether the columns that two datasets have in common hold the same texts; None if there are none.

    Of a part of a dataset, the columns of the whole dataset count.
    """
    own, others = ((data.selection or data).column_digests for data in (first, other))
    common = own.keys() & others.keys()
    return all(own[name] == others[name] for name in common) if common else None


def have_same_selection(first: HashedColumns, other: HashedColumns) -> bool:
    """Returns whether the same rows of two datasets were evaluated, if these have the same rows."""
    own, others = (
        data.selection and data.selection.model_copy(update={"column_digests": {}}) for data in (first, other)
    )
    return own == others


class DatasetSummary(Record):
    """A tokenized dataset."""

    source: str
    """Name of the dataset."""
    is_path: bool
    """Whether the name is a file or folder, not a hub name, or data in memory."""
    examples: Count
    """Number of rows that were evaluated."""
    truncated: Count
    """Texts cut to max_length tokens."""
    longest: Count
    """Tokens of the longest text before it was cut."""
    multiline: Count
    """Texts of several lines; an unbalanced quote in a CSV file merges rows into such a text."""
    blank: Count
    """Texts without a token except those that the tokenizer adds to every text."""
    unknown: Count
    """Texts whose tokens are all unknown to the tokenizer."""
    with_begin: Count
    """Texts that begin with the token that the tokenizer puts before every text (BOS); they have it once."""
    max_length: Count
    """Maximum number of tokens of a text."""
    digest: str
    """Hash of the token ids and labels."""
    text_digest: str
    """Hash of the texts and labels, independent of the tokenizer."""
    column_digests: dict[str, str]
    """Hash of each column with texts, by its name."""
    tokenizer_digest: str
    """Hash of the tokenizer."""
    normalized_labels: Count
    """Labels that are not written exactly as a class's name or number, but can mean only one class: with blanks around
    them, or as 5.0 for 5."""
    shards: list[ShardSummary] | None = None
    """Files of the dataset in the order of its rows; null if it is one file, a folder saved by `datasets`, or on the
    hub."""
    selection: SelectionSummary | None = None
    """Which rows were evaluated, null if all of them; the digests above are of these rows."""

    @property
    def sampling_fraction(self) -> float:
        """Share of the dataset's rows that a random sample has; 0 without one."""
        return self.selection.sampling_fraction if self.selection else 0.0

    def has_texts_of(self, other: DatasetSummary) -> bool:
        """Returns whether both have the same texts and labels, or texts of the same column, as prompts may.

        Of a run on a part of a dataset, the columns of the whole dataset count.
        """
        return self.text_digest == other.text_digest or bool(have_same_columns(self, other))


class PromptSummary(Record):
    """How a language model was asked for the classes."""

    template: str
    """Text of the prompt, with names of columns in braces, within the system instruction or chat template."""
    words: list[str]
    """Word of each class, with the white space before it."""
    tokens: list[list[Count]]
    """Token ids of each word."""
    length_normalization: str
    """What a word's log-likelihood was divided by: nothing (none), its number of tokens, or of bytes without the white
    space."""
    few_shot_rows: list[Count]
    """Positions of the examples before each prompt, in the file that they were drawn from."""
    few_shot_digest: str | None
    """Hash of the examples' text, null without examples."""


class ContinuationsSummary(Record):
    """Continuations whose log-likelihoods were computed, each after its context."""

    texts: Count
    """Number of contexts with a continuation."""
    forwards: Count
    """Forwards that they need: those that are equal up to their last token share one."""
    saved: Count
    """Forwards that were not needed for that reason."""
    truncated: Count
    """Contexts that were cut from the left, because they were too long together with the continuation."""
    longest: Count
    """Tokens of the longest context with its continuation, before it was cut."""
    max_length: Count
    """Most tokens of both together; the last one is not sent."""
    digest: str
    """Hash of the token ids."""


class Decoding(Record):
    """How the texts after prompts are generated."""

    max_new_tokens: Annotated[int, Field(ge=1)]
    """Most tokens of a text."""
    stop: list[str] = Field(default_factory=list)
    """Strings at the first of which a text ends; they are not part of it."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """What logits are divided by before a token is drawn; 0 takes the likeliest token (greedy decoding)."""
    top_k: Count = 0
    """Tokens to draw from, the likeliest ones; 0 for all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draws from the likeliest tokens whose probabilities add up to this."""
    seed: Count = 0
    """Seed of the draws."""
    settings: Annotated[dict[str, Any], Field(exclude_if=operator.not_)] = Field(default_factory=dict)
    """Settings of the model's generation config, or of a task, that change the logits, by transformers' names; left out
    where there are none."""


class PromptsSummary(Record):
    """Prompts after which texts were generated."""

    texts: Count
    """Number of prompts."""
    decodings: list[Decoding]
    """How texts were generated after them, each way that some prompt asks for."""
    truncated: Count
    """Prompts that were cut from the left, because they were too long together with the text after them."""
    longest: Count
    """Tokens of the longest prompt, before it was cut."""
    new_tokens: Count = 0
    """Tokens of all texts after them."""
    digest: str
    """Hash of the token ids, and of how texts were generated."""


class ModelSummary(Record):
    """The evaluated model."""

    base: str
    """Name of the base model."""
    base_is_path: bool
    """Whether the base was a folder, not a hub name."""
    checkpoint: str | None
    """Folder of the tuned checkpoint, null for a complete classifier or a language model."""
    tuning_mode: str | None
    """How the prompts were tuned, null if there are none."""
    pre_seq_len: Count
    """Prompt tokens before every text."""
    num_labels: Count
    """Classes, labels or outputs of the head."""
    weights_digest: str
    """Hash of the tuned tensors, or of the classifier, or of prompt and label words."""
    prompt: PromptSummary | None = None
    """How a language model was asked for the classes, null for models with a classification head."""
    adapter: str | None = None
    """LoRA adapter that the servers added to the base model, null without one."""


class PlanSummary(Record):
    """How examples were split into batches."""

    batches: Count
    """Number of batches."""
    padded_tokens: Count
    """Tokens of all batches with padding."""
    real_tokens: Count
    """Tokens of all batches without padding."""
    digest: str
    """Equal for equal plans."""


class SessionsSummary(Record):
    """The batches whose texts begin alike, so that servers computed their beginning once."""

    session_tokens: Count
    """Tokens that a session may hold."""
    batches: Count
    """Batches that were planned for sessions."""
    rows: Count
    """Their examples."""
    saved_tokens: Count
    """Tokens at the beginning of their texts, prompts included, which were not sent with each of them."""
    fell_back: Count
    """Batches that took plain forwards all the same, because no server had room for a session: the last digits of their
    answers may differ from those of a session."""


class Environment(Record):
    """Software that the results depend on."""

    python: str
    """Version of Python."""
    platform: str
    """Operating system and machine."""
    packages: dict[str, str | None]
    """Versions, null for what is not installed."""
    git_commit: str | None
    """Commit of the working directory, null outside of a repository."""
