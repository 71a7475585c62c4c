"""Reads a model's generation config, as `generate` of transformers does.

Settings that change the logits, such as a repetition penalty, are applied by transformers' own processors, to each
text separately. Settings for another kind of search are refused by name. Sampling and lengths come from the options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from dist_eval.errors import CheckpointError, ConfigError, ModelOutputError, one_line
from dist_eval.petals.base_model.weights import file_of
from dist_eval.results.inputs import Decoding
from dist_eval.revisions import pinned

_FILE, _END = "generation_config.json", "eos_token_id"

LOGITS_SETTINGS = (
    *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("sequence_bias", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "min_length", "min_new_tokens"),
    *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"),
)
"""Settings that also change the logits of greedy texts, by transformers' names."""

_OFF: dict[str, Any] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale", "num_beams"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("penalty_alpha", "diversity_penalty"), 0),
}
# settings for another kind of search, or that depend on time
_OTHER_SEARCHES = (
    *("num_beams", "force_words_ids", "constraints", "penalty_alpha", "dola_layers", "guidance_scale", "token_healing"),
    *("watermarking_config", "stop_strings", "max_time"),
)
_FOR_SAMPLES = ("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
_OFF_FOR_SAMPLES = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0}


class GenerationSettings:
    """The generation config of a model, by its folder or hub name."""

    def __init__(self, model: str) -> None:
        from transformers import GenerationConfig

        revision = pinned("model", model)
        self._file = f"{model}/{_FILE}"
        # without this file, transformers reads the settings in config.json, where older models have them
        own: dict[str, Any] = {}
        if file_of(model, _FILE, revision) is None:
            self._file, own = f"{model}/config.json", {"config_file_name": "config.json", "_from_model_config": True}
        try:
            config: Any = GenerationConfig.from_pretrained(model, revision=revision or "main", **own)
        except Exception as error:  # OSError, ValueError, or any other for values of the wrong type
            raise CheckpointError(f"{self._file} cannot be read: {one_line(error)}") from error
        self._values: dict[str, Any] = config.to_dict()

    @property
    def max_new_tokens(self) -> int | None:
        """Maximum tokens of a text, if set; the options override it."""
        return self._values.get("max_new_tokens")

    @property
    def end_tokens(self) -> list[int]:
        """Ids of the tokens that end a text."""
        named = self._values.get(_END)
        return sorted(named if isinstance(named, list) else [] if named is None else [named])

    def of_logits(self, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the settings that change the logits of texts, in the form of `Decoding.settings`.

        Further settings, `own`, take precedence. Raises a `ConfigError` if they ask for anything but greedy or sampled
        texts.
        """
        values = self._values | dict(own or {})
        for name in _OTHER_SEARCHES:
            if (value := values.get(name)) not in (None, False, [], _OFF.get(name)):
                also = "give them with --stop, and " if name == "stop_strings" else ""
                raise ConfigError(
                    f"{self._file} has {name}: {value!r:.80}, which changes texts and is not supported: {also}remove "
                    "it from a copy of the model's folder."
                )
        found = {name: values[name] for name in LOGITS_SETTINGS if values.get(name) not in (None, _OFF.get(name))}
        if not found:
            return {}
        found[_END] = self.end_tokens
        try:
            logits_process(Decoding(max_new_tokens=1, settings=found), torch.ones(1, 1, dtype=torch.int64))
        except Exception as error:  # ValueError, TypeError, or any other for values of the wrong kind
            where = self._file if own is None else "its settings"
            raise ConfigError(f"Texts cannot be generated with {where}: {one_line(error)}") from error
        return found

    def of_samples(self) -> dict[str, Any]:
        """Returns the settings `top_k` and `top_p` of sampled texts, if present; refuses others for them."""
        for name in _FOR_SAMPLES:
            if (value := self._values.get(name)) not in (None, _OFF_FOR_SAMPLES.get(name)):
                raise ConfigError(
                    f"{self._file} has {name}: {value!r}, which changes what is drawn and is not supported: remove it "
                    "from a copy of the model's folder."
                )
        return {name: self._values[name] for name in ("top_k", "top_p") if self._values.get(name) is not None}


Process = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Changes logits, floats of shape [1, vocabulary], given the token ids so far, int64 of shape [1, n]."""


def logits_process(decoding: Decoding, prompt: torch.Tensor) -> Process | None:
    """Returns the function that changes the logits of a text after a prompt of shape [1, length]; None without one."""
    if not decoding.settings:
        return None
    from transformers import GenerationConfig

    length = prompt.shape[1]
    config: Any = GenerationConfig(**decoding.settings)
    ends = decoding.settings.get(_END)
    config._eos_token_tensor = torch.tensor(ends) if ends else None
    # as `_prepare_generated_length` of transformers
    config.max_length = length + decoding.max_new_tokens
    if config.min_new_tokens is not None:
        config.min_length = length + config.min_new_tokens
    processors = _builder()._get_logits_processor(config, input_ids_seq_length=length, encoder_input_ids=prompt)

    def process(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        try:
            changed: torch.Tensor = processors(ids, logits)
        except (ValueError, IndexError, RuntimeError) as error:
            raise ModelOutputError(f"The generation config fails on a text: {one_line(error)}") from error
        return changed

    return process


@cache
def _builder() -> Any:
    """Returns the object that makes transformers' processors, without a model."""
    from transformers import GenerationMixin

    class Decoder(GenerationMixin):
        config = SimpleNamespace(is_encoder_decoder=False)

    return Decoder()
