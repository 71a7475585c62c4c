"""`generate` of transformers with caches on a swarm, and Petals' sessions that last for several calls."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch

from dist_eval.errors import ConfigError, DataError, NoCacheError
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.model.cache import SwarmCache, cache_name, close_unused
from dist_eval.tables import format_count

if TYPE_CHECKING:
    from dist_eval.petals.model.base import SwarmBase


class InferenceSession:
    """Texts that several calls of `generate` or `step` continue.

    Args:
        base: the base model.
        max_length: most tokens of a text, for which servers reserve memory.

    Attributes:
        output_ids: all tokens so far, int64 of shape [rows, length], or None before the first call of `generate`.
        is_closed: whether its texts cannot be continued any more.
    """

    def __init__(self, base: SwarmBase, max_length: int) -> None:
        number: Any = max_length
        if isinstance(number, bool) or not isinstance(number, Integral) or int(number) < 1:
            raise ConfigError(f"max_length of a session must be an integer of at least 1, not {max_length!r}.")
        self.max_length, self.is_closed = int(max_length), False
        self.output_ids: torch.Tensor | None = None
        self.cache = SwarmCache(base, max_length=self.max_length, at_once=True)
        self._base = base
        self._stepped: _Stepped | None = None

    @property
    def position(self) -> int:
        """Tokens of each text that servers keep; setting it to a smaller number drops the later ones."""
        return self.cache.get_seq_length() if self._stepped is None else self._stepped.position

    @position.setter
    def position(self, position: int) -> None:
        if not 0 <= position <= self.position:
            raise ConfigError(f"A session of {self.position} tokens cannot go to position {position}.")
        if self._stepped is not None:
            self._stepped.position = position
        elif position < self.position:
            self.cache.crop(position - self.position)
            self.output_ids = None if self.output_ids is None else self.output_ids[:, :position]

    @torch.no_grad()
    def step(
        self, inputs: torch.Tensor, prompts: torch.Tensor | None = None, hypo_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Sends the next hidden states of the texts through all layers.

        Args:
            inputs: inputs of the first layer for the next tokens, float of shape [rows, length, hidden].
            prompts: deep prompts, which are added to the first inputs of each layer; of shape [layers, 1 or rows,
                pre_seq_len, hidden], the same in each row; only in the first call. By default none, even in a tuned
                model.
            hypo_ids: a new order of the texts, which is refused.

        Returns:
            The outputs of the last layer before the final norm, of the same shape.

        Raises:
            ConfigError: the session has texts of `generate`, or the arguments are not supported.
            DataError: the shape differs from earlier calls, or texts become longer than `max_length`.
            SwarmError: see `client.forward`; a `NoCacheError` if servers have no room.
        """
        self.require_open(self._base)
        if self.cache.get_seq_length():
            raise ConfigError("The session has texts of generate: open another one for steps.")
        if hypo_ids is not None and not torch.equal(hypo_ids.cpu(), torch.arange(len(inputs))):
            raise ConfigError("hypo_ids: texts of a session keep their order. Send reordered texts in a new session.")
        if self._stepped is None:
            self._stepped = _Stepped(self._base, len(inputs), self.max_length, _of_all_rows(prompts))
        elif prompts is not None:
            raise ConfigError("prompts: give them only with the first step of a session; servers keep them.")
        return self._stepped.step(inputs)

    @property
    def has_steps(self) -> bool:
        """Whether `step` was called."""
        return self._stepped is not None

    @property
    def last_token_id(self) -> torch.Tensor | None:
        """The last token of each text, of shape [rows, 1]."""
        return None if self.output_ids is None else self.output_ids[:, -1:]

    def require_open(self, base: SwarmBase) -> None:
        """Refuses the session if it is closed, or has the texts of another model."""
        if self.is_closed:
            raise ConfigError("The session is closed: open another one.")
        if base is not self._base:
            raise ConfigError("The session has texts of another model: open one of this model.")

    def close(self) -> None:
        """Frees the servers' memory."""
        self.is_closed = True
        self.cache.close()
        if self._stepped is not None:
            self._stepped.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Stepped:
    """The session behind `InferenceSession.step`."""

    def __init__(self, base: SwarmBase, rows: int, max_length: int, deep_prompts: torch.Tensor | None) -> None:
        if not base.swarm_blocks.has_sessions:
            raise NoCacheError("The servers of this model do not keep texts, so steps cannot continue any.")
        if base.changes_frequencies(max_length):
            raise NoCacheError(
                "The model's rotary embeddings change below max_length, so servers cannot continue texts: give a "
                "smaller one."
            )
        self._max_length, self.position = max_length, 0
        self._shape = (rows, base.config.hidden_size)
        self._session = base.swarm_blocks.session(
            lambda given, _: given, rows, max_length, deep_prompts=deep_prompts, rolls_back=True
        )
        weakref.finalize(self, close_unused, self._session, os.getpid())

    def step(self, inputs: torch.Tensor) -> torch.Tensor:
        is_shaped = inputs.ndim == 3 and (len(inputs), inputs.shape[2]) == self._shape and inputs.shape[1] > 0
        if not (is_shaped and inputs.is_floating_point()):
            rows, width = self._shape
            raise DataError(f"A step takes floats of shape {[rows, 'length', width]}, not {list(inputs.shape)}.")
        end = self.position + inputs.shape[1]
        if end > self._max_length:
            raise DataError(f"The session was opened for max_length={self._max_length} tokens, not {end}.")
        outputs = self._session.step(Inputs.of(inputs), self.position)
        self.position = end
        return outputs

    def close(self) -> None:
        self._session.close()


def _of_all_rows(prompts: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the deep prompts that all rows share, of shape [layers, pre_seq_len, hidden]."""
    if prompts is None or not prompts.numel():
        return None
    if prompts.ndim != 4 or not torch.equal(prompts, prompts[:, :1].expand_as(prompts)):
        raise ConfigError("prompts must be of shape [layers, rows, pre_seq_len, hidden], and the same in all rows.")
    return prompts[:, 0]


# by base model; an entry of None hides an outer session
_active: ContextVar[Mapping[Any, InferenceSession | None]] = ContextVar("active_sessions", default={})  # noqa: B039
_generating: ContextVar[list[SwarmCache] | None] = ContextVar("generating", default=None)


def active_cache(base: SwarmBase) -> SwarmCache | None:
    """Returns the cache of the session in use in this context."""
    session = _active.get().get(base)
    if session is None:
        return None
    session.require_open(base)
    return session.cache


class Generating:
    """A mixin before a family's class that can `generate`."""

    if TYPE_CHECKING:

        @property
        def swarm_base(self) -> SwarmBase: ...

    @property
    def active_session(self) -> InferenceSession | None:
        """The session in use in this context."""
        return _active.get().get(self.swarm_base)

    @contextmanager
    def use_session(self, session: InferenceSession | None) -> Iterator[InferenceSession | None]:
        """Makes calls of the model, or of `generate`, within this context continue a session's texts."""
        token = _active.set({**_active.get(), self.swarm_base: session})
        try:
            yield session
        finally:
            _active.reset(token)

    @contextmanager
    def inference_session(self, *, max_length: int) -> Iterator[InferenceSession]:
        """Opens a session and uses it within this context.

        Args:
            max_length: most tokens of a text, for which servers reserve memory.
        """
        with InferenceSession(self.swarm_base, max_length) as session, self.use_session(session):
            yield session

    def generate(
        self, inputs: torch.Tensor | None = None, *args: Any, session: InferenceSession | None = None, **kwargs: Any
    ) -> Any:
        """Generates texts, as `generate` of transformers does.

        Args:
            inputs: token ids, int64 of shape [rows, length].
            *args: see transformers.
            session: a session to continue: `inputs` are the next tokens of its texts, or None, and only tokens after
                its earlier ones are returned. By default the session of the context, if any.
            **kwargs: see transformers.
        """
        session = session or self.active_session
        if session is not None:
            session.require_open(self.swarm_base)
        if session is not None and session.has_steps:
            raise ConfigError("The session has texts of step: open another one for generate.")
        token = _generating.set([])
        try:
            # the calls below get the cache as an argument
            with self.use_session(None) if session else nullcontext():
                if session is None:
                    return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]
                return self._continue(session, inputs, *args, **kwargs)
        finally:
            for cache in _generating.get() or ():
                cache.close()
            _generating.reset(token)

    def _continue(self, session: InferenceSession, inputs: torch.Tensor | None, *args: Any, **kwargs: Any) -> Any:
        inputs = kwargs.pop("input_ids", None) if inputs is None else inputs
        if session.output_ids is None and session.cache.is_initialized:
            raise ConfigError("The session has texts of a forward: open another one for generate.")
        before = 0
        mask = kwargs.pop("attention_mask", None)
        if session.output_ids is not None:
            if inputs is None and kwargs.get("inputs_embeds") is not None:
                raise ConfigError("inputs_embeds cannot continue a session: give input_ids.")
            before = session.output_ids.shape[1]
            new = session.output_ids[:, before:] if inputs is None else inputs.to(session.output_ids)
            if len(new) != len(session.output_ids):
                raise DataError(f"{len(new)} texts cannot continue a session of {len(session.output_ids)}.")
            inputs = torch.cat([session.output_ids, new], dim=1)
            if session.cache.get_seq_length() > before:
                raise ConfigError(
                    "Texts of this session have tokens without ids, of a forward or inputs_embeds: open another one."
                )
            session.cache.replace(session.output_ids)
            if not new.shape[1] and session.cache.get_seq_length() == before:
                session.cache.crop(-1)  # `generate` sends at least one token
            held = session.cache.columns(inputs).long()
            mask = torch.ones_like(new) if mask is None else mask[:, mask.shape[1] - new.shape[1] :].to(new)
            generated = mask.new_ones(len(mask), before - held.shape[1])
            mask = torch.cat([held.to(mask), generated, mask], dim=1)
        if mask is not None:
            kwargs["attention_mask"] = mask
        try:
            result = super().generate(inputs, *args, **kwargs, **{cache_name(): session.cache})  # type: ignore[misc]
        except BaseException:
            if before and session.position > before:  # the session continues as if this call had not been made
                session.position = before
            raise
        sequences = result if isinstance(result, torch.Tensor) else result.sequences
        session.output_ids, new = sequences, sequences[:, before:].clone()
        if isinstance(result, torch.Tensor):
            return new
        result.sequences = new
        return result

    def init_continuous_batching(self, *_: Any, **__: Any) -> Any:
        """Called by `generate_batch`, whose attention servers do not have."""
        raise ConfigError("Continuous batching is not possible on a swarm: call generate with the whole batch.")

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
        *args: Any,
    ) -> Any:
        """Called by `generate`; adds a cache to the model's arguments."""
        given = model_kwargs.get(cache_name())
        if given is not None and not isinstance(given, SwarmCache):
            raise ConfigError(
                f"A {type(given).__name__} cannot be used on a swarm, whose servers keep texts: leave it out."
            )
        if given is not None and generation_config.use_cache is False:
            raise ConfigError("use_cache=False: leave it out, or the session or cache.")
        if given is not None and given.is_initialized:
            if str(getattr(generation_mode, "value", "")).startswith("assisted"):
                raise ConfigError("Assisted generation cannot continue texts: leave out the session or cache.")
            copies = max(generation_config.num_beams or 1, generation_config.num_return_sequences or 1)
            if copies > 1 and given.batch_size == batch_size:
                raise ConfigError(
                    f"A session or cache of {format_count(batch_size, 'text')} cannot continue with {copies} beams or "
                    "sequences for each: leave it out, or repeat its texts."
                )
        generation_config.cache_implementation = None  # a model's own settings may name one
        if given is None and generation_config.use_cache is not False:
            reorders = (generation_config.num_beams or 1) > 1
            cache = SwarmCache(self.swarm_base, max_length=max_cache_length, at_once=True, reorders=reorders)
            model_kwargs[cache_name()] = cache
            if (made := _generating.get()) is not None:
                made.append(cache)
        return super()._prepare_cache_for_generation(  # type: ignore[misc]
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length, *args
        )
