"""A language model as a classifier: the class is the likeliest label word after a prompt.

If each word is one token, the head consists of rows of the output embedding: one forward per text, and only these rows
are computed. Otherwise, the score of a class is the log-likelihood of its word, with the softmax over the whole
vocabulary at each token. Both give the same class probabilities: the softmax over the words' log-likelihoods.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dist_eval.data.answers import logits_columns
from dist_eval.data.prompts import PromptedWords
from dist_eval.errors import ConfigError
from dist_eval.inference.models import SendOptions
from dist_eval.model.backbone import Backbone, ModelOnBackbone
from dist_eval.model.classifier import Classifier
from dist_eval.model.language_model import LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL, Problem
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.results.inputs import PromptSummary


@dataclass(frozen=True)
class LabelWords:
    """A language model, a prompt, and a word for each class, before the model is loaded.

    Raises `ConfigError` if two classes cannot be distinguished by their words.
    """

    name: str  # folder or hub name of the model
    config: Any  # its `transformers` config
    prompted: PromptedWords  # the prompt and the words
    label_names: list[str]  # name of each class
    # divides a word's log-likelihood by its number of tokens ("tokens"), or of bytes in UTF-8 without white space
    # before it ("bytes"); or not ("none")
    normalization: str = "none"
    few_shot_rows: Sequence[int] = ()  # positions of the examples in the file that they were drawn from

    problem: Problem = SINGLE_LABEL
    tuning_mode = None
    pre_seq_len = 0
    folder = None

    def __post_init__(self) -> None:
        if len({*self.label_names}) < self.num_labels:
            raise ConfigError("--label-words names a class twice: each class has one word.")
        for word, tokens in zip(self.prompted.words, self.tokens, strict=True):
            if max(tokens) >= self.config.vocab_size:
                raise ConfigError(
                    f"--label-words {word.strip()!r} has the token id {max(tokens)}, but the model knows only "
                    f"{self.config.vocab_size} ids: the tokenizer belongs to another model."
                )
        for one, other in itertools.permutations(range(self.num_labels), 2):
            shorter, longer = self.tokens[one], self.tokens[other]
            if longer[: len(shorter)] == shorter and (longer == shorter or self.normalization == "none"):
                words = [self.prompted.words[number].strip() for number in (one, other)]
                how = "are the same tokens" if longer == shorter else "start alike: the first is never less likely"
                raise ConfigError(
                    f"--label-words {words[0]!r} and {words[1]!r} {how}. Choose other words"
                    + ("." if longer == shorter else ", or normalize by length with --length-normalization.")
                )

    @property
    def tokens(self) -> list[list[int]]:
        """Token ids of each word."""
        return self.prompted.tokens

    @property
    def num_labels(self) -> int:
        return len(self.label_names)

    @property
    def extra_tokens(self) -> int:
        """Tokens of a forward besides the prompt: those of the longest word except its last."""
        return max(map(len, self.tokens)) - 1

    @property
    def forwards_per_text(self) -> int:
        """Forwards that a text needs: words that differ only in their last token share one."""
        return len({tuple(tokens[:-1]) for tokens in self.tokens})

    @property
    def outputs_per_text(self) -> int:
        """Positions whose outputs a text needs, at most: one for each token of a word."""
        return sum(map(len, self.tokens)) if self.extra_tokens else 1

    def digest(self) -> str:
        """Returns a hash of everything that the answers depend on besides model and dataset."""
        return hashlib.sha256(self.summary().model_dump_json().encode()).hexdigest()

    def summary(self) -> PromptSummary:
        """Returns the part `prompt` of the section `model` of `results.json`."""
        return PromptSummary(
            template=self.prompted.frame.around(self.prompted.template.text),
            words=self.prompted.words,
            tokens=self.tokens,
            length_normalization=self.normalization,
            few_shot_rows=list(self.few_shot_rows),
            few_shot_digest=hashlib.sha256(self.prompted.before.encode()).hexdigest() if self.prompted.before else None,
        )

    def on(self, backbone: Backbone, token_budget: int) -> ModelOnBackbone:
        """Puts the words on the base model; requests have at most `token_budget` tokens."""
        output = OutputEmbedding(self.name, self.config)
        if self.extra_tokens or self.normalization == "bytes" or not output.is_linear:
            return LabelWordClassifier(LanguageModel(backbone, output, token_budget), self.tokens, self._divisors())
        head = output.rows([token for tokens in self.tokens for token in tokens])
        return Classifier(backbone, TunedCheckpoint(head, None, None, self.label_names, architecture={}))

    def _divisors(self) -> torch.Tensor:
        sizes = {
            "none": [1] * self.num_labels,
            "tokens": list(map(len, self.tokens)),
            "bytes": [len(word.strip().encode()) for word in self.prompted.words],
        }
        return torch.tensor(sizes[self.normalization], dtype=torch.float64)


class LabelWordClassifier(ModelOnBackbone):
    """A language model that computes the log-likelihood of each label word after a prompt, divided by its divisor."""

    def __init__(self, model: LanguageModel, words: Sequence[Sequence[int]], divisors: torch.Tensor) -> None:
        super().__init__(model.backbone, model.output.hidden_size, logits_columns(len(words)))
        self._model, self._divisors = model, divisors
        self._sizes = torch.tensor([len(word) for word in words])
        self._words = torch.zeros(len(words), int(self._sizes.max()), dtype=torch.int64)
        for row, word in enumerate(words):
            self._words[row, : len(word)] = torch.tensor(word)

    def forwards(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self._model.forwards(*self._with_words(input_ids, lengths))

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        """Computes the log-likelihood of each word after each prompt, as `logits` of the classes."""
        found = self._model.answer(*self._with_words(input_ids, lengths), options, record)["log_likelihood"]
        return {"logits": (found.view(len(lengths), -1) / self._divisors).to(torch.float32)}

    def _with_words(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each prompt with each word, and their lengths (see `LanguageModel.answer`)."""
        count, width = self._words.shape
        starts = lengths.repeat_interleave(count)
        texts = torch.nn.functional.pad(input_ids, (0, width)).repeat_interleave(count, dim=0)
        places = starts[:, None] + torch.arange(width)
        texts.scatter_(1, places, self._words.repeat(len(lengths), 1))
        return texts, torch.stack([starts, starts + self._sizes.repeat(len(lengths))], dim=1)
