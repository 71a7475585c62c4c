"""Keeps log lines and warnings of libraries off the terminal."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from dist_eval.process.patching import environment_with

_LOGGERS = (
    *("hivemind", "petals", "asyncio", "transformers", "datasets", "huggingface_hub", "torch.distributed"),
    *("lm_eval", "evaluate", "bitsandbytes", "peft", "accelerate"),
)


def silence_libraries() -> None:
    """Keeps warnings and log lines of Petals, hivemind and transformers off the terminal.

    Call it before importing them, because hivemind reads its log level once and passes it to the p2p daemon.
    """
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # otherwise an unreachable host prints C++ stack traces
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # otherwise it warns when a process forks after tokenizing
    for category in (FutureWarning, DeprecationWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    warnings.filterwarnings("ignore", category=RuntimeWarning, message="coroutine .* was never awaited")
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def silence_petals() -> None:
    """Keeps log lines of Petals and hivemind off the terminal of a program that uses dist_eval.

    An existing HIVEMIND_LOGLEVEL takes precedence; the program's other loggers and its warnings are not changed.
    """
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")


@contextmanager
def forking_without_warnings() -> Iterator[None]:
    """Suppresses the warning of the tokenizers library about forks, which do not inherit its threads."""
    with environment_with("TOKENIZERS_PARALLELISM", os.environ.get("TOKENIZERS_PARALLELISM", "true")):
        yield
