"""Turns down what the libraries say by themselves, so that a run's output is the run's."""

from __future__ import annotations

import logging
import os
import warnings

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
