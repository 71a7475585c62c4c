"""Configs of base models, their names in a swarm, and the limits of requests that follow from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dist_eval.errors import CheckpointError, one_line
from dist_eval.petals.base_model.config_keys import require_integers, require_keys_read
from dist_eval.petals.base_model.problem_types import require_plausible_width
from dist_eval.petals.base_model.weights import file_of
from dist_eval.process.parsing import read_json

ADAPTER_CONFIG, _TOKENIZER_CONFIG = "adapter_config.json", "tokenizer_config.json"
_POSITIONS = ("max_position_embeddings", "max_seq_len")  # the latter is MPT's
_PETALS_TOKENS, _PETALS_TOKENS_MULTI_QUERY = 2048, 8192


def default_dht_prefix(model: str, base: Any, revision: str | None = None) -> str:
    """Returns the default name that Petals announces for a model.

    Source: `from_pretrained` of the configs in `petals.models` (2.2.0, and main for Mixtral) for hub names. A folder,
    for which Petals has no rule, keeps its name. The revision is a part of the name, because Petals does not
    distinguish servers by revision.
    """
    if revision:
        return default_dht_prefix(model, base) + "-" + re.sub(r"[^\w-]", "-", revision)
    if Path(model).is_dir():
        return Path(model).resolve().name.replace(".", "-").replace(" ", "-")
    if base.model_type == "bloom":
        return (model + "-petals").replace(".", "-")
    if base.model_type == "mixtral":
        return model.replace(".", "-")
    name = model.split("/")[-1].replace(".", "-")
    return name + "-hf" if base.model_type == "llama" and not name.endswith("-hf") else name


def read_base_config(model: str, revision: str | None = None) -> Any:
    """Reads a base model's `transformers` config, and checks that a swarm can serve such a model in blocks.

    `model` is a folder or hub name, and `revision` a branch, tag or commit on a hub, by default its main branch. Raises
    `CheckpointError` if the model does not exist, or cannot be served in blocks.
    """
    from dist_eval.petals.base_model.architecture import Architecture

    config = read_config(model, "base model", revision)
    decoder = Architecture(config, model).config
    # transformers ties weights by the config of the whole model
    decoder.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)
    return decoder


def read_config(model: str, what: str, revision: str | None = None) -> Any:
    """Reads a model's `transformers` config; rejects unknown keys that affect the computation, and LoRA adapters.

    `what` is the kind of model, for messages. For the others, see `read_base_config`.
    """
    from transformers import AutoConfig

    if not Path(model).exists() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise CheckpointError(f"The folder {model} with a {what} does not exist.")
    try:
        _require_no_adapter(model, what, revision)
        raw = read_config_file(model, revision)
        if "base_model_fingerprint" in raw:
            base = raw.get("base_model_name_or_path") or "a base model without a name"
            raise CheckpointError(
                f"{model} is not a {what} but a tuned checkpoint, of {base}: name that as the model, and this folder "
                "as the checkpoint."
            )
        require_integers(raw, f"{model}/config.json")
        require_plausible_width(raw, f"{model}/config.json")
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
    except CheckpointError:
        raise
    except Exception as error:  # OSError, ValueError, and errors of the hub's client
        where = "" if Path(model).exists() else " (there is no folder of this name)"
        raise CheckpointError(f"The {what} {model} cannot be read{where}: {one_line(error)}") from error
    require_keys_read(raw, config, f"{model}/config.json")
    decoder = config.get_text_config(decoder=True)
    for key, part in raw.items():  # a model with several parts has a config for each
        if isinstance(part, dict) and decoder is not config and getattr(config, key, None) is decoder:
            require_keys_read(part, decoder, f"{model}/config.json: {key}")
    return config


def _require_no_adapter(model: str, what: str, revision: str | None) -> None:
    """Rejects a folder or hub model with a LoRA adapter, which transformers would silently add."""
    from transformers.utils.hub import cached_file

    quiet: dict[str, Any] = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    if found := cached_file(model, ADAPTER_CONFIG, revision=revision, **quiet):
        base = json.loads(Path(found).read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise CheckpointError(
            f"The {what} {model} is or contains a LoRA adapter ({ADAPTER_CONFIG}) for {base}. Name the model without "
            "it, and the adapter with --adapter if servers host it; or save the model with the adapter merged into its "
            "weights (merge_and_unload), and name that folder."
        )


def read_config_file(model: str, revision: str | None = None) -> dict[str, Any]:
    """Returns the content of a model's `config.json`, without defaults of a version of transformers."""
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(model, "config.json", revision=revision)
        if found is None:
            if Path(model).is_dir():
                raise FileNotFoundError("the folder has no config.json: name the folder of a model in safetensors")
            raise FileNotFoundError("the folder does not exist, and the hub's cache on this host lacks the model")
        return dict(read_json(Path(found)))
    except Exception as error:  # OSError, ValueError, and errors of the hub's client
        where = "" if Path(model).exists() else " (there is no folder of this name)"
        raise CheckpointError(f"The config of {model} cannot be read{where}: {one_line(error).rstrip('.')}.") from error


def max_positions(config: Any) -> int | None:
    """Returns the maximum number of positions of a model or its decoder; None if there is no limit."""
    for part in (config, config.get_text_config(decoder=True)):
        for key in _POSITIONS:
            positions = getattr(part, key, None)
            if isinstance(positions, int) and positions > 0:  # some families use -1 for no limit
                return positions
    return None


def tokenizer_limit(place: str, revision: str | None = None) -> int | None:
    """Returns the length to which a model's tokenizer truncates texts by default (`model_max_length`)."""
    found = file_of(place, _TOKENIZER_CONFIG, revision)
    if found is None:
        return None
    try:
        values = dict(read_json(found))
    except (ValueError, TypeError, OSError) as error:
        raise CheckpointError(f"{found} cannot be read: {one_line(error)}") from error
    limit = values.get("model_max_length", values.get("max_len"))  # the latter in files of transformers 2
    return int(limit) if isinstance(limit, int | float) and limit >= 1 else None


def max_request_tokens(config: Any) -> int:
    """Returns the default maximum number of tokens of a request to a Petals server.

    Source: `max_batch_size` in `petals.server.server` (2.2.0): 8192 with multi-query attention, 2048 without.
    """
    key_value_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return _PETALS_TOKENS_MULTI_QUERY if config.num_attention_heads > key_value_heads else _PETALS_TOKENS


def default_cache_tokens(config: Any) -> int:
    """Returns the default cache size of a server in tokens: as in Petals, twice the tokens of a request."""
    return 2 * max_request_tokens(config)


def has_sessions(config: Any) -> bool:
    """Whether servers can cache a text to continue it, so that it may take several requests."""
    from dist_eval.petals.base_model.architecture import Architecture

    return Architecture(config).has_attention_cache


def session_tokens(config: Any) -> int:
    """Returns the maximum number of tokens of a session of texts with a common prefix.

    More rows are faster, fewer leave space for other sessions. It is a quarter of the default cache of Petals' servers
    (`attn_cache_tokens`, twice `max_batch_size`), so half of the cache keeps two servers busy. It depends only on the
    model, because results depend on it.
    """
    return max_request_tokens(config) // 2
