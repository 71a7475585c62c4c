"""What the versions of Petals can serve. Every decision that depends on a version is made here.

There are two: the release 2.2.0 from PyPI, and Petals' main branch (2.3.0.dev2), which is installed from git
(launch/petals-main). They speak the same protocol, so that clients and servers of both can work together, but neither
computes all models. What was measured is in this package's README.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from packaging.version import InvalidVersion, Version

from dist_eval.errors import CheckpointError
from dist_eval.process.patching import patched

_FIRST_OF_MAIN = Version("2.3.0.dev0")
_ROPE_OF_THE_RELEASE = ("default", "linear", "dynamic")
_INSTALL_MAIN = (
    "Install Petals main: `uv run --project launch/petals-main dist-eval ...`, see launch/petals-main/README.md."
)


@functools.cache
def installed_version() -> str:
    """Returns the version of the installed Petals."""
    return metadata.version("petals")


@functools.cache
def is_main(version: str | None) -> bool:
    """Whether this is a version of Petals' main branch; servers that announce none are older."""
    try:
        return version is not None and Version(version) >= _FIRST_OF_MAIN
    except InvalidVersion:
        return False


def can_roll_back(version: str | None) -> bool:
    """Whether servers with a version can forget the last tokens of an attention cache; others ignore the request."""
    return is_main(version)


def serves(version: str | None, config: Any) -> bool:
    """Whether servers with a version of Petals compute a model, and compute it right.

    Args:
        version: what a server announces.
        config: the model's `transformers` config.
    """
    if config.model_type == "falcon":  # every request to main ends in an AttributeError: `_prepare_attn_mask`
        return not is_main(version)
    return is_main(version) or not _is_newer_than_release(config)


def versions_needed(config: Any) -> str:
    """Names the versions of Petals that serve a model, for messages."""
    return "the release, Petals 2.2" if config.model_type == "falcon" else "Petals main (2.3 or later)"


def require_servable(model: str, config: Any) -> None:
    """Checks that the installed version can be a client for a model.

    Raises:
        CheckpointError: it cannot.
    """
    if config.model_type == "falcon" and is_main(installed_version()):
        raise CheckpointError(
            f"Petals {installed_version()} (main) cannot serve {model}: its servers fail on every request to a Falcon "
            "model. Use the release, Petals 2.2.0.post1: `uv run dist-eval ...` without `--project`."
        )


def require_local(model: str, config: Any) -> None:
    """Checks that a model's blocks can be computed with what is installed, in this process or in servers started here.

    Raises:
        CheckpointError: they cannot, or the result would be wrong.
    """
    if _is_newer_than_release(config) and not is_main(installed_version()):
        raise CheckpointError(
            f"The blocks of {model} cannot be computed with Petals {installed_version()}, which does not know "
            f"{_newer_feature(config)}; it can only be a client of servers with Petals main (--initial-peers). "
            + _INSTALL_MAIN
        )


def unknown_type(model: str, what: str, model_type: str) -> CheckpointError:
    """Returns the error for a type of models that the installed transformers does not know."""
    advice = _INSTALL_MAIN if model_type == "mixtral" else "Newer models need a newer version of Petals."
    return CheckpointError(
        f"The {what} {model} is of type {model_type!r}, which Petals {installed_version()} and its transformers "
        f"{metadata.version('transformers')} do not know. {advice}"
    )


@contextmanager
def reading_newer_configs() -> Iterator[None]:
    """Lets the transformers of the release read the config of a Llama that only servers with Petals main compute.

    A client needs nothing of what it does not know there; `require_local` refuses everything else.
    """
    if is_main(installed_version()):
        yield
        return
    from transformers import LlamaConfig

    validate = LlamaConfig._rope_scaling_validation

    def validate_known(config: Any) -> None:
        if not _is_newer_than_release(config):
            validate(config)

    with patched(LlamaConfig, "_rope_scaling_validation", validate_known):
        yield


def local_model_settings() -> dict[str, Any]:
    """Returns arguments of `from_pretrained` with which a base model computes attention as Petals' servers do.

    The transformers of main would otherwise choose a kernel of torch, whose rounding differs; that of the release has
    no such choice.
    """
    return {"attn_implementation": "eager"} if is_main(installed_version()) else {}


def _is_newer_than_release(config: Any) -> bool:
    return bool(config.model_type == "mixtral" or _newer_feature(config))


def _newer_feature(config: Any) -> str:
    """Names what the release does not know of a Llama; empty if it knows all."""
    if config.model_type != "llama":
        return ""
    scaling = getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_OF_THE_RELEASE:
        return f"its rope_scaling of type {kind!r}"
    return "its mlp_bias" if getattr(config, "mlp_bias", False) else ""
