"""Checks the keys of a model's config: an unknown one is an error, unless it cannot matter.

transformers ignores unknown keys. In files of newer versions, or of models with their own code, the effect of such keys
would silently be missing. Many config classes read the older names of their keys in the code of their constructors, so
that code counts as well as their arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dist_eval.errors import CheckpointError

_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
_OPTIONAL_SIZES = ("vocab_size", "type_vocab_size", "max_position_embeddings", "num_key_value_heads", "num_kv_heads")
_ROTARY = ("rope_parameters", "rope_scaling", "partial_rotary_factor", "rope_theta")

# Keys without an effect on the answers of a model whose weights fit
_NO_EFFECT = re.compile(
    "|".join(
        (
            # about the model, its tokenizer and text generation
            r"_.*|auto_map|architectures|transformers\.js_config|is_llama_config|unsloth_.*",
            r"sbert_.*|sentence_transformers",
            r"(.*_)?(version|revision|date|license|author|url|tags?|comment|description|languages?)|prefix|dataset.*",
            r"name|name_or_path|model_name|(finetuning_)?tasks?|task_.*|tokenizer_class|do_lower_case",
            r".*_token_ids?|(bos|eos|unk|sep|pad|cls|mask)_token|force_.*|forced_.*",
            r".*suppress_tokens|bad_words_ids|remove_invalid_values",
            r"do_sample|early_stopping|min_length|num_(beam.*|return_sequences)|temperature|top_[kp]|typical_p",
            r".*(_penalty|_ngram_size)",
            # used only in training
            r".*(dropout|pdrop|_drop|drop_prob|layerdrop|loss|_coef|coefficient|checkpointing|smoothing).*",
            r"(.*_)?(init|initializer)(_.*)?|mask_(time|feature)_.*|seed|train.*|optimizer.*|learning_rate|neftune_.*",
            # sizes, which the shapes of the weights determine
            r"head_dim|ffn_hidden_size|n_embed|n_ctx|seq_length|max_.*|.*_max_length",
            # caches, additional outputs and fused kernels
            r"(torch_)?dtype|use_bfloat16|xla_device|use_cache|save_step|tie_.*|torchscript|return_dict.*",
            r"output_(past|attentions|hidden_states|scores|router_logits)|pretraining_tp|slow_but_exact",
            r"attn_implementation|chunk_size_.*",
            r"masked_softmax_fusion|bias_dropout_fusion|offset_alibi|skip_bias_add(_qkv)?|attention_softmax_in_fp32",
            # from the first BERT and BART, whose code never used them
            r"directionality|pooler_(fc_size|num_.*|size_per_head|type)|normalize_embedding",
            r"extra_pos_embeddings|legacy",
        )
    )
)

# Later keys of a model type, and the value that corresponds to the computation before they existed
_AS_BEFORE: dict[tuple[str, str], Any] = {("falcon", "activation"): "gelu", ("gpt_neox", "attention_bias"): True}

# Keys that the code of modules reads from their config
_READ_BY_MODULES = re.compile(r"\bconfig\.([a-z_]\w*)|\bgetattr\(\s*(?:self\.)?config,\s*[\"'](\w+)[\"']")


def has_effect(key: str) -> bool:
    """Whether a key of a model's config may affect its answers."""
    return not _NO_EFFECT.fullmatch(key)


def require_integers(raw: Mapping[str, Any], where: str) -> None:
    """Checks that the sizes in a config are integers."""
    for key in (*_SIZES, *_OPTIONAL_SIZES):
        value = raw.get(key, 0)
        if not (type(value) is int or (value is None and key in _OPTIONAL_SIZES)):
            raise CheckpointError(f"{where}: {key} must be an integer, not {value!r:.80}.")


def require_keys_read(raw: Mapping[str, Any], config: Any, where: str) -> None:
    """Checks that every key that affects the computation was read."""
    for key, value in raw.items():
        if key.endswith("attn_implementation") and "/" in str(value):  # newer versions run kernels from the hub
            raise CheckpointError(f"{where}: {key} {value!r:.80} is code from a hub, which is never run: remove it.")
    if quantization := raw.get("quantization_config"):
        raise CheckpointError(
            f"{where}: the weights are quantized ({quantization!s:.80}), which is not supported: name the model in "
            "bfloat16 or float32."
        )
    known = _known_keys(type(config))
    if missed := _rotary(raw).items() - _rotary(_as_read(config, known)).items():
        key = next(key for key in _ROTARY if key in raw)
        what = f"{key} with {', '.join(f'{name} {value}' for name, value in sorted(missed))}"
        raise _refusal(f"{where}: {what}", config)
    for key in _unread(raw, config.model_type, known):
        raise _refusal(f"{where}: {key} {raw[key]!r:.80}", config)


def require_same_base(raw: Mapping[str, Any], base: Any, where: str, own: Collection[str]) -> None:
    """Checks that the config of tuned tensors describes an equivalent base model.

    `raw` is the content of their `config.json`, `base` the base model's `transformers` config, and `own` the keys of
    the tuned tensors. Other keys that differ or are unknown raise a `CheckpointError`.
    """
    known = _known_keys(type(base))
    for key in _unread(raw, base.model_type, {*known, *own}):
        raise _refusal(f"{where}: {key} {raw[key]!r:.80}", base)
    named = [key for key in inspect.signature(type(base)).parameters if key in raw and key not in (*own, *_ROTARY)]
    named = [key for key in named if raw[key] is not None and has_effect(key)]
    theirs = _rotary(raw) | {key: raw[key] for key in named}
    ours = _rotary(_as_read(base, known)) | {key: getattr(base, key, None) for key in named}
    is_whole = "rope_parameters" in raw or "rope_scaling" in raw
    for key in {**(ours if is_whole else {}), **theirs}:
        if theirs.get(key) != ours.get(key) and (key in theirs or key != "rope_theta"):  # may be absent
            raise CheckpointError(
                f"{where} is for a base model with {key} {theirs.get(key)!r:.80}, but this one has "
                f"{ours.get(key)!r:.80}: give the base model that it was tuned on."
            )


def _unread(raw: Mapping[str, Any], model_type: str, known: Collection[str]) -> Iterator[str]:
    """Yields the unknown keys of a config that may matter."""
    for key, value in raw.items():
        is_factor = key.endswith(("scale", "factor", "multiplier"))
        is_off = value in (None, False, "", [], {}) or (is_factor and value == 1 and value is not True)
        is_as_before = value == _AS_BEFORE.get((model_type, key))
        if not (key in known or key in _ROTARY or is_off or is_as_before or not has_effect(key)):
            yield key


def _refusal(what: str, config: Any) -> CheckpointError:
    return CheckpointError(
        f"{what} is unknown to transformers {version('transformers')} for models of type {config.model_type!r}, and "
        "may change their results. Use a version that supports it."
    )


def _as_read(config: Any, known: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in config.to_dict().items() if key in known}


def _known_keys(kind: Any) -> set[str]:
    """Returns the keys that a config class reads: arguments of constructors, and names in their code."""
    known = {*dir(kind), *getattr(kind, "attribute_map", ())}
    for base in (base for base in kind.__mro__ if base.__module__.startswith("transformers.models.")):
        for function in (vars(base).get(name) for name in ("__init__", "__post_init__")):
            if function is not None:
                code = inspect.unwrap(function).__code__
                known.update(inspect.signature(function).parameters)
                known.update(code.co_names, (text for text in code.co_consts if isinstance(text, str)))
    with suppress(Exception):  # some classes require arguments
        known.update(kind().to_dict())
    return known | _keys_of_modeling(kind)


def _keys_of_modeling(kind: Any) -> set[str]:
    """Returns the keys that the code of a model type's modules reads, including ones that its config class lacks."""
    source = str(kind.__module__).replace(".configuration_", ".modeling_")
    found = find_spec(source) if source.startswith("transformers.models.") and source != kind.__module__ else None
    if found is None or found.origin is None:
        return set()
    text = Path(found.origin).read_text(encoding="utf-8")
    return {attribute or argument for attribute, argument in _READ_BY_MODULES.findall(text)}


def _rotary(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings of rotary embeddings, as text, by their names in `rope_parameters`."""
    found = {key: values.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    for part in (values.get("rope_scaling"), values.get("rope_parameters")):
        found.update(part if isinstance(part, dict) else {})
    if "type" in found:
        found["rope_type"] = found.pop("type")
    defaults = {"rope_type": "default", "partial_rotary_factor": 1}
    return {
        key: str(float(value) if isinstance(value, int) else value)
        for key, value in found.items()
        if value is not None and value != defaults.get(key)
    }
