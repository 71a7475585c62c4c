"""Handles a user's own model: restores its mode, removes wrappers, and finds its inputs and outputs."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from dist_eval.errors import ConfigError, ModelOutputError
from dist_eval.petals.model.model import SwarmModel

_VALUES_SAMPLED = 32  # of each tensor, to check that ranks have the same model


def without_wrapper(model: nn.Module) -> nn.Module:
    """Returns the model that `DistributedDataParallel` or `torch.compile` wraps.

    `DistributedDataParallel` may synchronize all ranks in each forward. Ranks have different numbers of batches, so
    that would hang. For the same reason, a model that is sharded over the ranks (FSDP, ZeRO-3) is refused.
    """
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = cast(nn.Module, model.module)
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            break
    is_fsdp = any(type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")) for module in model.modules())
    if is_fsdp or any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        raise ConfigError(
            "The model is sharded over the ranks (FSDP, ZeRO-3), but ranks have different numbers of batches here. "
            "Give a model that is whole on each rank."
        )
    return model


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts a model in eval mode without gradients; afterwards restores each module's mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:  # outer modules come first, because they also set inner ones
            if module.training != mode:
                module.train(mode)


def fingerprint_of(model: nn.Module) -> str:
    """Hashes a few values of each tensor of a model; the hash differs between ranks whose weights have diverged.

    Quantized layers have tuples of tensors in a state dict, and `get_extra_state` may add anything. Values that differ
    between processes or are not available, such as offloaded weights, count by their type and shape.
    """
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        for part in _values_of(value):
            digest.update(part)
    return digest.hexdigest()


def _values_of(value: Any) -> Iterator[bytes]:
    yield f" {type(value).__name__} ".encode()
    if isinstance(value, torch.Tensor):
        yield str(list(value.shape)).encode()
        try:
            plain = value.detach().dequantize() if value.is_quantized else value.detach()
            flat = (torch.view_as_real(plain) if plain.is_complex() else plain.to_dense()).flatten()
            some = flat[:: max(1, len(flat) // _VALUES_SAMPLED)]
            yield some.to("cpu", torch.float64).numpy().tobytes()
        except (RuntimeError, TypeError):  # on no device, or of a type whose values cannot be read
            return
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key).encode()
            yield from _values_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _values_of(part)
    elif isinstance(value, str | bytes | int | float | torch.dtype | None):
        yield repr(value).encode()


def names_taken(model: nn.Module) -> Callable[[str, Any], bool]:
    """Returns a function that says whether a model's `forward` takes an entry of a batch, given by name and value.

    A PEFT model takes any name and passes it on to the model that it wraps. Any other model that takes any name gets
    all tensors and nothing else, such as texts. A swarm model refuses other names.
    """
    parameters = inspect.signature(model.forward).parameters
    names = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    if len(names) == len(parameters) or isinstance(model, SwarmModel):
        return lambda name, value: name in names
    wraps = any(kind.__module__.startswith("peft.") for kind in type(model).__mro__) and len([*model.children()]) == 1
    inner = names_taken(next(model.children())) if wraps else lambda name, value: isinstance(value, torch.Tensor)
    return lambda name, value: name in names or inner(name, value)


def logits_of(outputs: Any) -> torch.Tensor:
    """Returns the logits in a model's outputs; raises a `ModelOutputError` if there are none."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise ModelOutputError(f"The model's output is a {type(outputs).__name__} without logits.")
    return logits
