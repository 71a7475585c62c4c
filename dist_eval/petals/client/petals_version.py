"""What servers can compute, by the version that they announce. All decisions that depend on the version are here.

There are three kinds: Petals' release 2.2, Petals' main branch (2.3.0.dev2), and the servers of `dist-eval swarm`. They
speak the same protocol, but the first two compute few models. This package's README has measurements.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

from packaging.version import InvalidVersion, Version

from dist_eval.errors import ConfigError

INSTALLED = "2.2.0.post1"
"""The version of Petals on which our servers are built."""

ANNOUNCED = "2.3.0+dist.eval.chain3.sessions"
"""The version that our servers announce. Like Petals main they can roll a session back. `dist.eval` identifies them;
`chain3` says that they pass requests on, and keep deep prompts and streams; `sessions` that they pass steps of sessions
on."""

_OURS, _CHAIN, _SESSIONS = ("dist", "eval"), "chain3", "sessions"
_FIRST_OF_MAIN = Version("2.3.0.dev0")
# Supported rotary embeddings by model type. Main fails on every request to a Falcon.
_RELEASE = {"llama": ("default", "linear", "dynamic"), "bloom": ("default",), "falcon": ("default",)}
_MAIN = {"llama": ("default", "linear", "dynamic", "llama3"), "bloom": ("default",), "mixtral": ("default",)}


def require_petals() -> None:
    """Raises a `ConfigError` if Petals, which servers need, is not installed."""
    if find_spec("petals") is None:
        raise ConfigError(
            "Servers need Petals. Its metadata requires packages of 2023, so install it without dependencies: "
            f"pip install '.[servers]' && pip install --no-deps petals=={INSTALLED} "
            "(outside the repository, 'WHEEL[servers]' with a wheel of dist_eval)"
        )


def has_petals_sessions(inference_schema: Any) -> bool:
    """Whether a server's sessions are those of Petals.

    BloomBee's servers announce the version of Petals main and answer its forwards and backwards, but misinterpret the
    tensors of a step, so deep prompts would be dropped silently. Only their schema reveals them.
    """
    match inference_schema:
        case ((_, _, _), {**named}):
            return not named
        case _:
            return False


@functools.cache
def can_roll_back(version: str | None) -> bool:
    """Whether servers of a version can drop the last tokens of an attention cache; others ignore the request."""
    try:
        return version is not None and Version(version) >= _FIRST_OF_MAIN
    except InvalidVersion:
        return False


@functools.cache
def can_chain(version: str | None) -> bool:
    """Whether servers of a version pass requests on to the next one and accept token ids (see `chain.py`)."""
    return _is_ours(version) and _CHAIN in _abilities(version)


@functools.cache
def can_chain_sessions(version: str | None) -> bool:
    """Whether servers of a version also pass the steps of sessions on."""
    return can_chain(version) and _SESSIONS in _abilities(version)


def _is_ours(version: str | None) -> bool:
    return _abilities(version)[:2] == _OURS


def _abilities(version: str | None) -> tuple[str, ...]:
    try:
        return tuple((Version(version or "").local or "").split("."))
    except InvalidVersion:
        return ()


def serves(version: str | None, config: Any) -> bool:
    """Whether servers of a version compute a model correctly."""
    if _is_ours(version):
        return True
    known = _MAIN if can_roll_back(version) else _RELEASE
    if known is _RELEASE and (getattr(config, "mlp_bias", False) or _is_first_falcon(config)):
        return False
    return _rope_type(config) in known.get(config.model_type, ())


def versions_needed(config: Any) -> str:
    """Names the servers that serve a model, for messages."""
    others = {"the release, Petals 2.2": "2.2", "Petals main (2.3.0.dev2)": "2.3.0.dev2"}
    return " or ".join(["`dist-eval swarm`", *(name for name, version in others.items() if serves(version, config))])


def _is_first_falcon(config: Any) -> bool:
    """Whether it is like Falcon 7B, on which servers of the release fail."""
    return getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False)


def _rope_type(config: Any) -> str:
    return str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default"))
