"""The configs of base models, the names that they have in a swarm, and the limits of requests that follow from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dist_eval.base_model.config_keys import require_integers, require_keys_read
from dist_eval.data.problem_types import require_plausible_width
from dist_eval.errors import CheckpointError, one_line
from dist_eval.process.interpreter import has_packages_of_petals
from dist_eval.process.parsing import read_json

_ADAPTER_CONFIG = "adapter_config.json"
_PETALS_TOKENS, _PETALS_TOKENS_MULTI_QUERY = 2048, 8192


def default_dht_prefix(model: str, base: Any, revision: str | None = None) -> str:
    """Returns the name under which Petals announces a model by default.

    Source: `from_pretrained` of the configs in `petals.models` (2.2.0, and main for Mixtral) for hub names. For a
    folder, for which Petals has no rule, its name. A revision, by which Petals does not tell servers apart, is a part
    of the name.
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
    """Reads a base model's config and checks that a swarm can serve such a model in blocks.

    Args:
        model: folder or hub name.
        revision: branch, tag or commit on a hub; by default its main branch.

    Returns:
        A `transformers.PretrainedConfig`.

    Raises:
        CheckpointError: there is no such model, or it cannot be served in blocks.
    """
    from dist_eval.base_model.architecture import Architecture

    config = read_config(model, "base model", revision)
    # where Petals' own models are used, Petals itself says which it has
    return config if has_packages_of_petals() else Architecture(config, model).config


def read_config(model: str, what: str, revision: str | None = None) -> Any:
    """Reads a model's config.

    Args:
        model: folder or hub name.
        what: what the model is, for messages.
        revision: see `read_base_config`.

    Returns:
        A `transformers.PretrainedConfig`.

    Raises:
        CheckpointError: it cannot be read, or not all that changes what is computed; or it is a LoRA adapter.
    """
    from transformers import AutoConfig

    if not Path(model).exists() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise CheckpointError(f"There is no folder {model} with a {what}.")
    try:
        _require_no_adapter(model, what, revision)
        raw = read_config_file(model, revision)
        require_integers(raw, f"{model}/config.json")
        require_plausible_width(raw, f"{model}/config.json")
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
    except CheckpointError:
        raise
    except Exception as error:  # OSError, ValueError, and errors of the hub's client
        where = "folder" if Path(model).exists() else "folder or hub model"
        raise CheckpointError(f"The {what} {model} cannot be read as a {where}: {one_line(error)}") from error
    require_keys_read(raw, config, f"{model}/config.json")
    decoder = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    for key, part in raw.items():  # a model of several parts has a config of each; since transformers 4.45
        if isinstance(part, dict) and decoder is not config and getattr(config, key, None) is decoder:
            require_keys_read(part, decoder, f"{model}/config.json: {key}")
    return config


def _require_no_adapter(model: str, what: str, revision: str | None) -> None:
    """Checks that a folder or hub model holds no LoRA adapter, which transformers would add without a word."""
    from transformers.utils.hub import cached_file

    quiet: dict[str, Any] = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    if found := cached_file(model, _ADAPTER_CONFIG, revision=revision, **quiet):
        base = json.loads(Path(found).read_text(encoding="utf-8")).get("base_model_name_or_path")
        raise CheckpointError(
            f"The {what} {model} is or holds a LoRA adapter ({_ADAPTER_CONFIG}), made for {base}. Name the model "
            "without it, and the adapter with --adapter where servers hold it; or save the model with the adapter "
            "merged into its weights (merge_and_unload), and name that folder."
        )


def read_config_file(model: str, revision: str | None = None) -> dict[str, Any]:
    """Returns the content of a model's `config.json`, as it is: no default depends on a version of transformers.

    Raises:
        CheckpointError: it cannot be read.
    """
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(model, "config.json", revision=revision)
        if found is None:  # without a connection
            raise FileNotFoundError("there is no such folder, and no such model in the hub's cache on this host")
        return dict(read_json(Path(found)))
    except Exception as error:  # OSError, ValueError, and errors of the hub's client
        raise CheckpointError(f"The config of {model} cannot be read: {one_line(error)}") from error


def max_request_tokens(config: Any) -> int:
    """Returns how many tokens a Petals server accepts in one request by default.

    Source: `max_batch_size` in `petals.server.server` (2.2.0): 8192 with multi-query attention, 2048 without.
    """
    key_value_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return _PETALS_TOKENS_MULTI_QUERY if config.num_attention_heads > key_value_heads else _PETALS_TOKENS


def default_cache_tokens(config: Any) -> int:
    """Returns for how many tokens of sessions a server has room by default: as Petals', twice those of a request."""
    return 2 * max_request_tokens(config)


def has_sessions(config: Any) -> bool:
    """Whether servers can keep what is needed of a text to continue it, so that it may take several requests."""
    from dist_eval.base_model.architecture import Architecture

    return not has_packages_of_petals() and Architecture(config).has_attention_cache


def session_tokens(config: Any) -> int:
    """Returns how many tokens a session of texts that begin alike may hold.

    More rows are faster, fewer leave room for other sessions: it is a quarter of what Petals' servers have memory for
    by default (`attn_cache_tokens`, twice `max_batch_size`), so that half of that keeps two servers busy. It depends on
    the model alone, because results depend on it.
    """
    return max_request_tokens(config) // 2
