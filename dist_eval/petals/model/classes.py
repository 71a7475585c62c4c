"""A family's own classes of models with a head, on a base model whose layers a swarm computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.model.base import (
    CACHE_NAMES,
    SwarmBase,
    base_class,
    named_arguments,
    refuse_unsupported,
    rows_of,
    shape_of,
    subclass,
)
from dist_eval.petals.model.generation import Generating
from dist_eval.petals.model.model import SwarmModel
from dist_eval.petals.model.rows import only_columns


class WithHead(SwarmModel):
    """A mixin before a family's class with a head; moves its base model to a swarm."""

    if TYPE_CHECKING:  # transformers evaluates the annotations of its classes
        swarm_base_class: ClassVar[type[SwarmBase]]
        modules: Any
        children: Any

    def equip(self) -> None:
        """Turns the base model into one on a swarm."""
        kind = self.swarm_base_class
        base = next(module for module in self.modules() if type(module) is kind.architecture.base_class)
        base.__class__ = kind
        base.equip()

    @property
    def swarm_base(self) -> SwarmBase:
        """The base model."""
        return next(module for module in self.children() if isinstance(module, SwarmBase))


class CausalLM(WithHead, Generating):
    """A mixin before a family's language model."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the family's own forward; requests only the outputs that it computes logits from."""
        given = named_arguments(super().forward, args, kwargs)  # type: ignore[misc]
        with only_columns(_kept(given)):
            return super().forward(**given)  # type: ignore[misc]


class SequenceClassifier(WithHead):
    """A mixin before a family's sequence classifier."""

    if TYPE_CHECKING:
        config: Any
        score: nn.Linear
        loss_function: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Classifies texts by their last token, according to the mask, or without a mask as in transformers."""
        from transformers.modeling_outputs import SequenceClassifierOutputWithPast

        given = named_arguments(super().forward, args, kwargs)  # type: ignore[misc]
        labels, returns_dict = given.pop("labels", None), given.pop("return_dict", None)
        last = self.last_tokens(given)
        with only_columns(last):
            output = self.swarm_base(**given)
        hidden = output.last_hidden_state
        logits = self.score(hidden[last.to(hidden.device)].to(next(self.score.parameters(), hidden).dtype))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, pooled_logits=logits, config=self.config)
        found = SequenceClassifierOutputWithPast(loss=loss, logits=logits)
        for name in output.keys() - {"last_hidden_state"}:
            found[name] = output[name]
        return found.to_tuple() if returns_dict is False else found

    def texts(self, *args: Any, **kwargs: Any) -> list[torch.Tensor] | None:
        """Returns the token ids of each text up to its last token, from arguments of `forward`.

        Those of a text are int64 of shape [length]. Returns None if the arguments ask for more than logits.
        """
        given = named_arguments(super().forward, args, kwargs)  # type: ignore[misc]
        given = {name: value for name, value in given.items() if value is not None}
        if "input_ids" not in given or not given.keys().isdisjoint(("labels", "inputs_embeds", *CACHE_NAMES)):
            return None
        refuse_unsupported(given, self.config)
        rows = rows_of(given)
        last = rows.moved_left(self.last_tokens(given)).int().argmax(dim=1)
        ids = rows.moved_left(self.swarm_base.known_ids(given["input_ids"], rows.real))
        return [text[: place + 1] for text, place in zip(ids, last.tolist(), strict=True)]

    def last_tokens(self, given: Mapping[str, Any]) -> torch.Tensor:
        """Marks the last token of each text, from arguments of `forward`; bool of shape [rows, columns]."""
        mask, ids = given.get("attention_mask"), given.get("input_ids")
        rows, columns = shape_of(given)
        if mask is not None:  # the base model refuses one of another shape
            mask = mask[:, -columns:] if mask.ndim == 2 and mask.shape[1] >= columns else torch.ones(rows, columns)
        elif ids is not None and self.config.pad_token_id is not None:
            mask = ids != self.config.pad_token_id
        elif ids is not None and rows > 1:
            raise ValueError("Cannot handle batch sizes > 1 if no padding token is defined.")
        else:
            mask = torch.ones(rows, columns)
        numbers = torch.arange(columns, device=mask.device)
        return numbers == (numbers * (mask != 0)).argmax(dim=1, keepdim=True)


def _kept(given: Mapping[str, Any]) -> torch.Tensor | None:
    """Returns the columns whose logits are needed, bool of shape [1, columns]; None for all."""
    kept = given.get("logits_to_keep")
    if kept is None or (isinstance(kept, int) and not kept):
        return None
    columns = torch.zeros(1, shape_of(given)[1], dtype=torch.bool)
    columns[:, slice(-kept, None) if isinstance(kept, int) else kept] = True
    return columns


def causal_class(architecture: Architecture) -> Any:
    """Makes the swarm class of a family's language model."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return _class(MODEL_FOR_CAUSAL_LM_MAPPING[type(architecture.config)], CausalLM, architecture)


def classifier_class(architecture: Architecture) -> Any:
    """Makes the swarm class of a family's sequence classifier."""
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    kind = type(architecture.config)
    has_one = kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    family = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[kind] if has_one else _generic_classifier(architecture)
    return _class(family, SequenceClassifier, architecture)


def _generic_classifier(architecture: Architecture) -> Any:
    """Makes a sequence classifier for a family without one, as transformers does for most others."""
    from transformers.modeling_layers import GenericForSequenceClassification

    base: Any = architecture.base_class
    root = next(kind for kind in base.__mro__ if kind.__name__.endswith("PreTrainedModel"))
    name = f"{base.__name__.removesuffix('Model')}ForSequenceClassification"
    return type(name, (GenericForSequenceClassification, root), {"__module__": base.__module__})


def _class(family: Any, mixin: type, architecture: Architecture) -> Any:
    names: dict[str, Any] = {"swarm_base_class": base_class(architecture)}
    if family.base_model_prefix != "transformer":  # Petals' models use this name for their base model
        names["transformer"] = WithHead.swarm_base
    return subclass(family, mixin, **names)
