"""What libraries log and warn of by themselves: kept off the terminal, so that a run's output is the run's."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOUD = ("hivemind", "petals", "asyncio", "transformers", "datasets", "huggingface_hub", "torch.distributed")


def silence_libraries() -> None:
    """Keeps warnings and log lines of Petals, hivemind and transformers off the terminal.

    Call it before importing them: hivemind reads its log level once, and hands it to the p2p daemon.
    """
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # else stack traces of C++ whenever a host is not reached
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else it warns when a process forks after tokenizing
    for category in (FutureWarning, DeprecationWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    warnings.filterwarnings("ignore", category=RuntimeWarning, message="coroutine .* was never awaited")
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def silence_petals() -> None:
    """Keeps what Petals and hivemind log by themselves off the terminal of somebody else's program.

    HIVEMIND_LOGLEVEL, where it is set, decides; the program's other loggers and its warnings are left alone.
    """
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")


@contextmanager
def forking_without_warnings() -> Iterator[None]:
    """Within this context a fork prints no warning of the tokenizers library, whose threads it would not inherit."""
    is_set = "TOKENIZERS_PARALLELISM" in os.environ
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        yield
    finally:
        if not is_set:
            del os.environ["TOKENIZERS_PARALLELISM"]
