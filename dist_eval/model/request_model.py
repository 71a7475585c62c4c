"""Language model + generator → a model that answers requests: for log-likelihoods, and for texts after prompts."""

from __future__ import annotations

import numpy as np
import torch

from dist_eval.data.answers import AnswerColumns, column_names
from dist_eval.inference.send_options import SendOptions
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.generation import GeneratedTexts, Generator
from dist_eval.model.language_model import LanguageModel
from dist_eval.petals.client.routes import RouteRecord


class RequestModel(ModelOnBackbone):
    """A language model that answers both kinds of requests; columns of the other kind are 0."""

    def __init__(self, model: LanguageModel, generator: Generator | None, columns: AnswerColumns) -> None:
        super().__init__(model.backbone, model.output.hidden_size, columns)
        self._model, self._generator = model, generator

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        if lengths.shape[1] == Generator.LENGTHS:
            return self.generate(input_ids, lengths, record).answer
        return self._all_columns(self._model.answer(input_ids, lengths, options, record), lengths)

    def generate(self, input_ids: torch.Tensor, lengths: torch.Tensor, record: RouteRecord) -> GeneratedTexts:
        """See `Generator.generate`."""
        assert self._generator is not None, "there are prompts"
        texts = self._generator.generate(input_ids, lengths, record)
        return texts._replace(answer=self._all_columns(texts.answer, lengths))

    def _all_columns(self, found: dict[str, torch.Tensor], lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        empty = np.zeros(len(lengths), dtype=self.columns)
        return {name: found.get(name, torch.from_numpy(empty[name].copy())) for name in column_names(self.columns)}
