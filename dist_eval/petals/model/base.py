"""A family's base model whose layers a swarm computes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from dist_eval.errors import ConfigError, DataError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.petals.model.blocks import SwarmBlocks
from dist_eval.petals.model.cache import SwarmCache, cache_name
from dist_eval.petals.model.generation import active_cache
from dist_eval.petals.model.layers import Through, layers_are, put_remote_layers
from dist_eval.petals.model.loading import final_norm_of
from dist_eval.petals.model.model import SwarmModel
from dist_eval.petals.model.prompts import Prompts
from dist_eval.petals.model.rows import Rows, real_columns, require_consecutive

MAX_REQUEST_TOKENS = 1024
"""Most tokens in a request, as in Petals' own micro-batches: servers accept 2048 or more."""

# Arguments besides those below that change nothing of what a base model computes
_WITHOUT_EFFECT = ("return_dict", "use_cache", "cache_position", "num_items_in_batch")
CACHE_NAMES = ("past_key_values", "cache")
_READ = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", *CACHE_NAMES)


class SwarmBase(SwarmModel, Prompts):
    """A mixin before a family's base model.

    Attributes:
        architecture: of the family's base model.
        blocks: the layers on the swarm.
    """

    if TYPE_CHECKING:  # transformers evaluates the annotations of its classes
        architecture: ClassVar[Architecture]
        blocks: SwarmBlocks
        get_input_embeddings: Any
    _output_class = BaseModelOutputWithPast

    @property
    def swarm_base(self) -> SwarmBase:
        """The base model of a model with a head, and of this one."""
        return self

    def equip(self) -> None:
        """Puts remote layers and prompts, without values yet, into a base model."""
        put_remote_layers(self, self.architecture)
        self.add_prompts()

    @property
    def final_norm(self) -> nn.Module:
        """The norm after the layers."""
        return final_norm_of(self, self.architecture)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the texts of a batch, each as if it were alone."""
        given = named_arguments(super().forward, args, kwargs)
        refuse_unsupported(given, self.config)
        words, cache = self._words(given), self._cache(given)
        held = words.new_zeros(len(words), 0, dtype=torch.bool) if cache is None else cache.columns(words)
        real = real_columns(given.get("attention_mask"), held, words.shape[1])
        require_consecutive(given.get("position_ids"), held, real)
        rows = Rows(real)
        if not held.shape[1] and not rows.counts.all():
            raise DataError(f"Row {int((rows.counts == 0).nonzero()[0])} of a batch has no token.")
        texts = rows.moved_left(words)
        hidden = self.whole_texts(texts, rows.counts.tolist()) if cache is None else cache.continued(texts, rows)
        output = self._output_class(last_hidden_state=rows.moved_back(hidden))
        if cache is not None:
            output[cache_name()] = cache
        return output.to_tuple() if given.get("return_dict") is False else output

    def _cache(self, given: Mapping[str, Any]) -> SwarmCache | None:
        """Returns the cache that is given, that of the session in use, or a new one if one is to be returned."""
        cache = next((given[name] for name in CACHE_NAMES if given.get(name) is not None), None)
        if cache is None:
            cache = active_cache(self)
        if cache is None:
            wanted = given.get("use_cache")
            return (
                SwarmCache(self) if (getattr(self.config, "use_cache", False) if wanted is None else wanted) else None
            )
        if not isinstance(cache, SwarmCache):
            raise ConfigError(
                f"A {type(cache).__name__} cannot hold what the servers of a swarm keep: leave it out, or pass what "
                "an earlier call has returned."
            )
        return cache

    def _words(self, given: Mapping[str, Any]) -> torch.Tensor:
        ids, words = given.get("input_ids"), given.get("inputs_embeds")
        if (ids is None) == (words is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        return self.get_input_embeddings()(ids) if words is None else words

    def whole_texts(self, words: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Computes texts from their beginning; those whose rotary embeddings differ never share a request.

        Args:
            words: embedded tokens, float of shape [rows, length, hidden], padded on the right.
            counts: number of real tokens of each row.

        Returns:
            The outputs of the base model, of the same shape. They are differentiable in words and prompts.
        """
        kinds = [self._rope.kind(self.prompt_length + count) for count in counts]
        if {*kinds} == {self._rope.kind(self.prompt_length + words.shape[1])}:
            return self._alike(words)
        outputs: list[torch.Tensor] = [words] * len(words)
        for kind in {*kinds}:
            rows = [row for row, other in enumerate(kinds) if other == kind]
            longest = max(counts[row] for row in rows)
            found = torch.nn.functional.pad(self._alike(words[rows, :longest]), (0, 0, 0, words.shape[1] - longest))
            for row, output in zip(rows, found, strict=True):
                outputs[row] = output
        return torch.stack(outputs)

    @functools.cached_property
    def _rope(self) -> RopeSwitch:
        return RopeSwitch(self.config)

    def changes_frequencies(self, tokens: int) -> bool:
        """Whether a text that becomes so long, without prompts, has other rotary embeddings from its first token on."""
        return self._rope.kind(self.prompt_length + tokens) > 0

    def _alike(self, words: torch.Tensor) -> torch.Tensor:
        """Sends texts in as many requests as they need."""
        rows = max(1, MAX_REQUEST_TOKENS // (words.shape[1] + self.prompt_length))
        deep = self.deep_prompts()
        return self.run(words, lambda hidden: self.blocks.forward(hidden, deep, most_texts=rows), self.soft_prompts())

    def embedded(self, input_ids: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Computes the inputs of the first layer, of shape [batch, pre_seq_len + length, hidden]."""
        found: list[torch.Tensor] = []

        def keep(hidden: torch.Tensor) -> torch.Tensor:
            found.append(hidden)
            return hidden

        words = self.get_input_embeddings()
        self.run(words(input_ids.to(words.weight.device)), keep, prompts)
        return found[0]

    def run(self, words: torch.Tensor, through: Through, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Runs the family's own base model, whose layers are a function; returns the outputs of the words.

        What it does before its first layer and after its last one is the family's own: scales, positions, norms.
        """
        before = 0 if prompts is None else len(prompts)
        if prompts is not None:
            words = torch.cat([prompts.to(words).expand(len(words), -1, -1), words], dim=1)
        with layers_are(through):
            found = super().forward(inputs_embeds=words, use_cache=False, return_dict=True)
        self._output_class = type(found)
        return found.last_hidden_state[:, before:]


def named_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments by the names that a function has for them."""
    names = _positional(function.__func__)
    return {**dict(zip(names, args, strict=False)), **kwargs}


@functools.cache
def _positional(function: Any) -> list[str]:
    return [*inspect.signature(function).parameters][1:]


def refuse_unsupported(given: Mapping[str, Any], config: Any) -> None:
    """Refuses arguments of a forward that servers cannot follow.

    Raises:
        ConfigError: there is one; the message names it.
    """
    for name, what in (("output_hidden_states", "hidden states"), ("output_attentions", "attentions")):
        asked = given.get(name)
        if getattr(config, name, False) if asked is None else asked:
            raise ConfigError(f"{name}: the servers of a swarm do not return the {what} of their layers. Leave it out.")
    for name, value in given.items():
        is_off = value is None or value is False or (name == "token_type_ids" and not value.any())
        if not (is_off or name in _READ or name in _WITHOUT_EFFECT):
            raise ConfigError(f"A model on a swarm cannot take {name}, which would be left out without a word.")


def base_class(architecture: Architecture) -> type[SwarmBase]:
    """Makes a class of a family's base model, whose instances are made by `equip`."""
    return subclass(architecture.base_class, SwarmBase, architecture=architecture)


def subclass(family: Any, mixin: Any, **attributes: Any) -> Any:
    """Makes a subclass of one of transformers' classes that has its name, and its signature."""

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device("meta"):
            family.__init__(self, config, *args, **kwargs)
            self.equip()

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return mixin.forward(self, *args, **kwargs)

    own = {"__init__": __init__, "__module__": family.__module__, "__qualname__": family.__qualname__, **attributes}
    if "forward" in vars(mixin):
        own["forward"] = functools.wraps(family.forward)(forward)
    return type(family.__name__, (mixin, family), own)
