"""A family's base model whose layers a swarm computes."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import nn
from torch.nn import functional

from dist_eval.errors import ConfigError, DataError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.embedding import after_prompts
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.petals.client.inputs import TokenIds
from dist_eval.petals.model.blocks import SwarmBlocks
from dist_eval.petals.model.cache import SwarmCache, cache_name
from dist_eval.petals.model.generation import active_cache
from dist_eval.petals.model.layers import See, is_overridden, put_stubs, require_unchanged, seeing_inputs
from dist_eval.petals.model.loading import final_norm_of
from dist_eval.petals.model.model import SwarmModel
from dist_eval.petals.model.prompts import Prompts
from dist_eval.petals.model.rows import Rows, needed_columns, put_back, real_columns, require_consecutive

if TYPE_CHECKING:
    from dist_eval.petals.client.requests import SwarmRequests

MAX_REQUEST_TOKENS = 1024
"""Most tokens in a request of several texts, as in Petals' own micro-batches: servers accept 2048 or more."""

_WORDS_AT_ONCE = 1 << 14  # what a processor core can cache

# Other arguments that do not affect a base model's computation; `generate` passes the tokenizer on
_WITHOUT_EFFECT = ("return_dict", "use_cache", "cache_position", "num_items_in_batch", "tokenizer")
CACHE_NAMES = ("past_key_values", "cache")
_READ = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", *CACHE_NAMES)


class SwarmBase(SwarmModel, Prompts):
    """A mixin before a family's base model."""

    if TYPE_CHECKING:  # transformers evaluates the annotations of its classes
        architecture: ClassVar[Architecture]  # of the family's base model
        swarm_blocks: SwarmBlocks  # the layers on the swarm
        get_input_embeddings: Any
        _loaded_words: LoadedWords

    @property
    def swarm_base(self) -> SwarmBase:
        """This model; models with a head have the same property."""
        return self

    def equip(self) -> None:
        """Adds stubs for the layers, and uninitialized prompts."""
        put_stubs(self, self.architecture)
        self.add_prompts()

    def connect(self, requests: SwarmRequests, **options: Any) -> None:
        """Makes a swarm compute the layers; for the options see `SwarmBlocks`."""
        self.swarm_blocks = SwarmBlocks(requests, keeps_texts=self.architecture.has_attention_cache, **options)

    @property
    def swarm_final_norm(self) -> nn.Module:
        """The norm after the layers."""
        return final_norm_of(self, self.architecture)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the texts of a batch, each as if it were alone; outputs that are not needed are zero."""
        given = named_arguments(super().forward, args, kwargs)
        refuse_unsupported(given, self.config)
        require_unchanged(self, self.architecture, self.swarm_blocks.requests.num_blocks)
        texts, cache = _texts(given), self._cache(given)
        rows = rows_of(given, cache)
        texts = self.known_ids(texts, rows.real)
        needed = needed_columns(rows.real)
        texts, wanted = rows.moved_left(texts), rows.moved_left(needed)
        if cache is None:
            hidden = self.whole_texts(texts, rows.counts.tolist(), wanted)
        else:
            hidden = cache.continued(texts, rows, wanted)
        output = self._output_class(last_hidden_state=put_back(self.swarm_final_norm(hidden), needed))
        if cache is not None:
            output[cache_name()] = cache
        return output.to_tuple() if given.get("return_dict") is False else output

    def _cache(self, given: Mapping[str, Any]) -> SwarmCache | None:
        """Returns the given cache, that of the session in use, or a new one if the output should contain one."""
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
                f"A {type(cache).__name__} cannot be used on a swarm, whose servers keep texts: leave it out, or pass "
                "the one that an earlier call returned."
            )
        if not cache.belongs_to(self):
            raise ConfigError(f"{cache_name()} has texts of another model: leave it out.")
        return cache

    def known_ids(self, texts: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Returns texts with ids that the model knows also at padding; refuses unknown ids of real tokens."""
        if texts.is_floating_point():
            return texts
        known = len(self.get_input_embeddings().weight)
        is_unknown = (texts < 0) | (texts >= known)
        if not is_unknown.any():
            return texts
        if wrong := (is_unknown & real.to(texts.device)).nonzero().tolist():
            row, column = wrong[0]
            raise DataError(f"input_ids has {int(texts[row, column])} in row {row}; the model knows 0 to {known - 1}.")
        return texts.masked_fill(is_unknown, 0)

    @functools.cached_property
    def _output_class(self) -> Any:
        return type(self._through_stubs(self.get_input_embeddings().weight.new_zeros(1, 1, self.config.hidden_size)))

    def whole_texts(self, texts: torch.Tensor, counts: Sequence[int], wanted: torch.Tensor) -> torch.Tensor:
        """Computes texts from their beginning, in requests of texts of similar length.

        Returns the outputs of the last layer at the wanted positions, row by row, of shape [positions, hidden]. They
        are differentiable with respect to embedded tokens and prompts.

        Args:
            texts: token ids, int64 of shape [rows, length], or embedded tokens, float of shape [rows, length, hidden],
                padded on the right.
            counts: number of real tokens of each row.
            wanted: positions whose outputs are needed, bool of shape [rows, length].
        """
        prompts, before = self.soft_prompts(), self.prompt_length
        numbers = wanted.flatten().cumsum(0).view(wanted.shape) - 1
        parts, order = list[tuple[torch.Tensor | TokenIds, torch.Tensor]](), list[torch.Tensor]()
        for rows in self._requests(counts):
            longest = max(counts[row] for row in rows)
            asked = wanted[rows, :longest]
            if asked.any():
                places = functional.pad(asked, (before, 0)).flatten().nonzero().squeeze(1)
                parts.append((self.inputs(texts[rows, :longest], prompts), places))
                order.append(numbers[rows, :longest][asked])
        table = self.get_input_embeddings().weight
        if not parts:
            return table.new_zeros(0, self.config.hidden_size)
        outputs = torch.cat(self.swarm_blocks.forward_all(parts, self.deep_prompts())).to(table)
        return outputs[torch.cat(order).argsort().to(outputs.device)]

    def _requests(self, counts: Sequence[int]) -> Iterator[list[int]]:
        """Yields the rows of each request; rows with different rotary embeddings never share one."""
        lengths = [self.prompt_length + count for count in counts]
        order = sorted(range(len(counts)), key=lambda row: -lengths[row])
        for _, rows in itertools.groupby(order, lambda row: self._rope.kind(lengths[row])):
            left = [*rows]
            while left:
                size = max(1, MAX_REQUEST_TOKENS // lengths[left[0]])
                yield left[:size]
                left = left[size:]

    @functools.cached_property
    def _rope(self) -> RopeSwitch:
        return RopeSwitch(self.config)

    def changes_frequencies(self, tokens: int) -> bool:
        """Whether texts of `tokens`, without prompts, have different rotary embeddings from the first token on."""
        return self._rope.kind(self.prompt_length + tokens) > 0

    def inputs(self, texts: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor | TokenIds:
        """Returns the inputs to send for texts (see `embedded`): their ids if servers have the same embeddings."""
        if texts.is_floating_point() or not self.architecture.has_lookup:
            return self.embedded(texts, prompts)
        if not self._loaded_words.are_unchanged(self._input_modules(), texts):
            return self.embedded(texts, prompts)
        return TokenIds(texts, prompts, self.embedded, self.config.hidden_size)

    def input_parameters(self) -> list[torch.Tensor]:
        """Returns the embeddings of tokens, and the parameters of norms between them and the first layer."""
        return _parameters_of(self._input_modules())

    def _input_modules(self) -> list[nn.Module]:
        return [self.get_input_embeddings(), *map(self.get_submodule, self.architecture.input_norms)]

    def words_are_loaded(self) -> None:
        """Records that the embeddings are those of the model on disk, which servers also have."""
        self._loaded_words = LoadedWords(self._input_modules())

    def has_loaded_words(self) -> bool:
        """Whether all embeddings of tokens are those of the model on disk, as far as their dtype can tell."""
        table, *norms = self.input_parameters()
        return table.dtype != self._loaded_words.dtype or self._loaded_words.are_equal(table, norms)

    def embedded(self, texts: torch.Tensor, prompts: torch.Tensor | None = None) -> torch.Tensor:
        """Computes the inputs of the first layer, including the family's own scales and norms before it.

        `texts` are token ids or embedded tokens (see `whole_texts`), with soft `prompts` before each, of shape
        [pre_seq_len, hidden]. The inputs have shape [rows, pre_seq_len + length, hidden].
        """
        if not texts.is_floating_point():
            words = self.get_input_embeddings()
            texts = words(texts.to(words.weight.device))
        found: list[torch.Tensor] = []
        self._through_stubs(after_prompts(texts, prompts), found.append)
        return found[0]

    def _through_stubs(self, words: torch.Tensor, see: See = lambda _: None) -> Any:
        with seeing_inputs(see):
            return super().forward(inputs_embeds=words, use_cache=False, return_dict=True)


class LoadedWords:
    """The embeddings of tokens as they were loaded: whether servers would compute the same ones from ids.

    They are compared by their values: fused optimizers, and code that uses `.data`, change a tensor without a trace.
    `modules` are the embeddings, and the norms between them and the first layer.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules, self._types = modules, [type(module) for module in modules]
        table, *norms = _parameters_of(modules)
        self._norms = [norm.detach().clone() for norm in norms]
        self.dtype, self._hashes = table.dtype, _hashes_of(table)

    @torch.no_grad()
    def are_equal(self, table: torch.Tensor, norms: Sequence[torch.Tensor], ids: torch.Tensor | None = None) -> bool:
        """Whether the embeddings of some ids, by default of all, and the norms have the same values."""
        hashes = self._hashes
        if ids is not None:
            used = ids.unique().cpu()
            if (used >= len(hashes)).any():  # added by resize_token_embeddings
                return False
            table, hashes = table[used.to(table.device)], hashes[used]
        are_alike = all(torch.equal(one.to(other), other) for one, other in zip(norms, self._norms, strict=True))
        return are_alike and torch.equal(_hashes_of(table), hashes)

    @torch.no_grad()
    def are_unchanged(self, modules: Sequence[nn.Module], ids: torch.Tensor) -> bool:
        """Whether the embeddings of some ids were not replaced, changed or hooked, and are not being trained."""
        if any(map(is_overridden, modules)) or [type(module) for module in modules] != self._types:
            return False
        if any(module is not loaded for module, loaded in zip(modules, self._modules, strict=True)):
            return False
        table, *norms = _parameters_of(modules)
        if any(tensor.requires_grad for tensor in (table, *norms)):
            return False
        return self.are_equal(table, norms, ids)


def _parameters_of(modules: Sequence[nn.Module]) -> list[torch.Tensor]:
    words, *norms = modules
    return [cast(torch.Tensor, words.weight), *itertools.chain(*(norm.parameters() for norm in norms))]


def _hashes_of(table: torch.Tensor) -> torch.Tensor:
    """Returns a hash of each row's bytes, int64 of shape [rows].

    Rows that differ have equal hashes with a probability of 2**-32 or less: their words of 32 bits are weighted by
    random numbers of 64 bits (multilinear hashing: Carter and Wegman, "Universal classes of hash functions", 1979).
    """
    table = table.detach().contiguous()
    row_bytes = table.shape[1] * table.dtype.itemsize
    words = table.view(torch.int32 if row_bytes % 4 == 0 else torch.int16)
    weights = torch.randint(-(2**63), 2**63 - 1, words.shape[1:], generator=torch.Generator().manual_seed(0))
    weights = weights.to(table.device)
    parts = words.split(max(1, _WORDS_AT_ONCE // max(1, len(weights))))
    return torch.cat([part.to(torch.int64).mul_(weights).sum(1) for part in parts]).cpu()


def _texts(given: Mapping[str, Any]) -> torch.Tensor:
    ids, words = given.get("input_ids"), given.get("inputs_embeds")
    if (ids is None) == (words is None):
        raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
    return cast(torch.Tensor, ids if words is None else words)


def rows_of(given: Mapping[str, Any], cache: SwarmCache | None = None) -> Rows:
    """Returns the places of tokens in a base model's batch.

    Refuses a row that has no token, or cannot be computed alone.
    """
    texts = _texts(given)
    earlier = texts.new_zeros(len(texts), 0, dtype=torch.bool) if cache is None else cache.columns(texts)
    real = real_columns(given.get("attention_mask"), earlier, texts.shape[1])
    require_consecutive(given.get("position_ids"), earlier, real)
    rows = Rows(real)
    if not earlier.shape[1] and not rows.counts.all():
        raise DataError(f"Row {int((rows.counts == 0).nonzero()[0])} of a batch has no token.")
    return rows


def shape_of(given: Mapping[str, Any]) -> torch.Size:
    """Returns rows and columns of a base model's batch."""
    return _texts(given).shape[:2]


def named_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments by their names in a function's signature."""
    names = _positional(function.__func__)
    return {**dict(zip(names, args, strict=False)), **kwargs}


@functools.cache
def _positional(function: Any) -> list[str]:
    return [*inspect.signature(function).parameters][1:]


def refuse_unsupported(given: Mapping[str, Any], config: Any) -> None:
    """Refuses arguments of a forward that servers do not support."""
    for name in ("output_hidden_states", "output_attentions", "output_router_logits"):
        asked = given.get(name)
        if getattr(config, name, False) if asked is None else asked:
            what = name.removeprefix("output_").replace("_", " ")
            raise ConfigError(f"{name}: the servers of a swarm do not return the {what} of their layers. Leave it out.")
    for name, value in given.items():
        is_off = value is None or value is False or (name == "token_type_ids" and not value.any())
        if not (is_off or name in _READ or name in _WITHOUT_EFFECT):
            raise ConfigError(f"{name}: a model on a swarm does not support this argument. Leave it out.")


def base_class(architecture: Architecture) -> type[SwarmBase]:
    """Makes the swarm class of a family's base model, whose instances `equip` prepares."""
    return subclass(architecture.base_class, SwarmBase, architecture=architecture)


def subclass(family: Any, mixin: Any, **attributes: Any) -> Any:
    """Makes a subclass of one of transformers' classes, with the same name and signature."""

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
