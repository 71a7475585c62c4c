"""How the texts of the harness' requests are generated."""

from __future__ import annotations

import difflib
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from pydantic import ValidationError

from dist_eval.errors import ConfigError, one_line
from dist_eval.model.generation_config import LOGITS_SETTINGS, GenerationSettings
from dist_eval.results.inputs import Decoding

# top_k of the harness' Hugging Face backend, unless a task sets it: `transformers`' default
_SAMPLED_FROM = 50

_SETTINGS = ("do_sample", "temperature", "top_k", "top_p", "max_gen_toks", "until")
# further settings that a task may have, with the only supported values
_NO_OTHERS: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}


def decoding_of(
    instance: Instance, eos_token: str | None, seed: int, model: GenerationSettings | None = None
) -> Decoding:
    """Returns how the harness' own backend would generate the text of a request.

    A task's settings override the `model`'s generation config.
    """
    try:
        options = dict(normalize_gen_kwargs(instance.args[1]))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The task {instance.task_name} cannot generate with {instance.args[1]!r:.200}: {one_line(error)}."
        ) from error
    stop = handle_stop_sequences(options.pop("until"), eos=eos_token)
    samples, temperature = options.pop("do_sample"), float(options.pop("temperature", 0.0))
    try:
        usual = {"top_k": _SAMPLED_FROM, "top_p": 1.0} | (model.of_samples() if model and samples else {})
        settings = model.of_logits(options) if model else {}
    except ConfigError as error:
        raise ConfigError(f"The task {instance.task_name}: {error}") from error
    most, top_k, top_p = options.pop("max_gen_toks"), *(options.pop(name, usual[name]) for name in ("top_k", "top_p"))
    options = {name: value for name, value in options.items() if name not in LOGITS_SETTINGS}
    for name, value in options.items():
        if value is not None and value != _NO_OTHERS.get(name):
            close = difflib.get_close_matches(name, _SETTINGS, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ConfigError(
                f"The task {instance.task_name} generates with {name}: {value!r}, which is not supported "
                f"(generation_kwargs of its file, or --gen-kwargs).{hint} Texts are generated greedily, or drawn "
                "(do_sample) with temperature, top_k and top_p; they end after max_gen_toks, or at a string in until."
            )
    if samples and not temperature:
        raise ConfigError(
            f"The task {instance.task_name} draws its texts (do_sample) with a temperature of 0. Set one above 0, or "
            "leave out do_sample."
        )
    drawn = {"temperature": temperature, "top_k": top_k or 0, "top_p": top_p, "seed": seed} if samples else {}
    try:
        stops = [string for string in stop if string]
        return Decoding(max_new_tokens=most, stop=stops, settings=settings, **drawn)
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ConfigError(
            f"The task {instance.task_name} cannot generate with {first['loc'][0]}: {first['input']!r}: {first['msg']}."
        ) from error


def texts_asked_for(instance: Instance, decoding: Decoding) -> int:
    """Returns how many texts are generated for a request: only one if greedy, because all would be equal."""
    return int(instance.repeats or 1) if decoding.temperature else 1
