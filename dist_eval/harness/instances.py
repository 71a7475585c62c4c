"""The harness' requests (`Instance`): whose they are, their texts, and how they want texts generated."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from pydantic import ValidationError

from dist_eval.errors import ConfigError, DataError, one_line
from dist_eval.results.inputs import Decoding

ROLLING = "loglikelihood_rolling"
# Tokens that the harness' Hugging Face backend draws from unless a task says otherwise: `transformers`' default
_SAMPLED_FROM = 50

# Further settings that a task may name, with the only values that are supported
_NO_OTHERS: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0, "use_cache": True}


def text_argument(instance: Instance, number: int) -> str:
    """Returns one of the texts of a request."""
    text = instance.args[number]
    if not isinstance(text, str):
        is_target = number == 1 or instance.request_type == ROLLING
        what = "target (doc_to_target)" if is_target else "context (doc_to_text)"
        raise problem_of(instance, f"the {what} is no text but {text!r:.40}, of type {type(text).__name__}")
    return text


def problem_of(instance: Instance, problem: str) -> DataError:
    """Returns an error that names a request's task and document."""
    return DataError(f"Task {instance.task_name}, document {document_of(instance)}: {problem}.")


def document_of(instance: Instance) -> int:
    """Returns the number of a request's document in the data, which `doc_id` is not where --samples chooses some."""
    return int(getattr(instance, "document", instance.doc_id))


def decoding_of(instance: Instance, eos_token: str | None, seed: int) -> Decoding:
    """Returns how the harness' own backend would generate the text.

    Args:
        instance: a request for a text.
        eos_token: the tokenizer's token at which texts end, if it has one.
        seed: of texts that are drawn.

    Raises:
        ConfigError: a setting is not supported.
    """
    try:
        options = dict(normalize_gen_kwargs(instance.args[1]))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"The task {instance.task_name} cannot generate with {instance.args[1]!r:.200}: {one_line(error)}."
        ) from error
    stop = handle_stop_sequences(options.pop("until"), eos=eos_token)
    samples, temperature = options.pop("do_sample"), float(options.pop("temperature", 0.0))
    most, top_k, top_p = options.pop("max_gen_toks"), options.pop("top_k", _SAMPLED_FROM), options.pop("top_p", 1.0)
    for name, value in options.items():
        if value is not None and value != _NO_OTHERS.get(name):
            raise ConfigError(
                f"The task {instance.task_name} generates with {name}: {value!r}, which is not supported: texts "
                "are generated greedily, or drawn with temperature, top_k and top_p, and end at a string in until."
            )
    if samples and not temperature:
        raise ConfigError(
            f"The task {instance.task_name} draws its texts (do_sample) with a temperature of 0: it should name "
            "one above 0, or leave do_sample out."
        )
    drawn = {"temperature": temperature, "top_k": top_k or 0, "top_p": top_p, "seed": seed} if samples else {}
    try:
        return Decoding(max_new_tokens=most, stop=[string for string in stop if string], **drawn)
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ConfigError(
            f"The task {instance.task_name} cannot generate with {first['loc'][0]}: {first['input']!r}: {first['msg']}."
        ) from error


def texts_asked_for(instance: Instance, decoding: Decoding) -> int:
    """Returns how many texts are generated for a request: several ones only differ if they are drawn."""
    return int(instance.repeats or 1) if decoding.temperature else 1
