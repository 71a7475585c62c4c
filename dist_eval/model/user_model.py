"""Logits of a user-supplied model, whose state is restored afterwards.

A Petals model is not run by its own `forward`, which cannot take a mask and sends prompts with each example, but by
`Classifier`, as in `dist-eval`. That is right only for an unmodified classifier of Petals, which is checked.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import ConfigError, DataError, EvaluationError, ModelOutputError
from dist_eval.inference.forward import checked_answers
from dist_eval.inference.in_flight import map_in_flight, window_in_memory
from dist_eval.model.classifier import Classifier, classifier_of
from dist_eval.model.swarm_backbone import SwarmBackbone
from dist_eval.options.groups import MAX_TOKEN_BUDGET

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests

Key = TypeVar("Key")

_VALUES_SAMPLED = 32  # Of each tensor, to check that ranks have the same model

# Requests of each model, kept for their statistics of the servers
_requests: WeakKeyDictionary[nn.Module, SwarmRequests] = WeakKeyDictionary()


def without_wrapper(model: nn.Module) -> nn.Module:
    """Returns the model that `DistributedDataParallel` or `torch.compile` wraps.

    `DistributedDataParallel` may synchronize all ranks in each forward. Ranks have different numbers of batches, so
    that would hang.

    Raises:
        ConfigError: the model is sharded (FSDP, ZeRO-3), and needs all ranks for a forward.
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
            "The model is sharded over the ranks (FSDP, ZeRO-3), which have different numbers of batches here. Give a "
            "model that is whole on each rank."
        )
    return model


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Puts a model in eval mode without gradients; afterwards every module has its previous mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:  # outer modules come first, and set the inner ones
            if module.training != mode:
                module.train(mode)


def is_on_swarm(model: Any) -> bool:
    """Whether a model is a Petals model, whose blocks a swarm hosts."""
    return any(kind.__module__.startswith("petals.models.") for kind in type(model).__mro__)


def fingerprint_of(model: nn.Module) -> str:
    """Hashes a few values of each tensor of a model: it differs between ranks whose weights have diverged.

    Quantized layers keep tuples of tensors in a state dict, and `get_extra_state` may add anything. What has no value
    that is the same in each process, or none at hand, such as offloaded weights, counts by its type and shape.
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
        except (RuntimeError, TypeError):  # on no device, or of a type that does not let its values out
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

    One of PEFT's takes any name, and passes it on to the model that it wraps. What any other one that takes any name
    does with it cannot be told: all tensors are for it, and nothing else, such as texts.
    """
    parameters = inspect.signature(model.forward).parameters
    names = {name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD}
    if len(names) == len(parameters):
        return lambda name, value: name in names
    wraps = any(kind.__module__.startswith("peft.") for kind in type(model).__mro__) and len([*model.children()]) == 1
    inner = names_taken(next(model.children())) if wraps else lambda name, value: isinstance(value, torch.Tensor)
    return lambda name, value: name in names or inner(name, value)


def logits_of(outputs: Any) -> torch.Tensor:
    """Returns the logits in a model's outputs.

    Raises:
        ModelOutputError: there are none.
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise ModelOutputError(f"The model's output is a {type(outputs).__name__} without logits.")
    return logits


def texts_of(
    batch: Mapping[str, Any], pad_token_id: int | None, name: Callable[[int], str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the texts of a batch for a Petals model, which takes no mask.

    Args:
        batch: `input_ids`, int64 of shape [batch, length], padded on the right, and `attention_mask` of the same shape.
            Without a mask a text ends before its trailing `pad_token_id`s.
        pad_token_id: of the model's config; None if it has none: texts without a mask are then as long as the batch.
        name: returns the name of a row for messages.

    Returns:
        Token ids without columns of only padding, and the length of each text, int64 of shape [batch], on the CPU.

    Raises:
        DataError: a text is padded on the left, masked inside or empty, or the batch has an input that Petals lacks.
    """
    for other in ("inputs_embeds", "position_ids"):
        if batch.get(other) is not None:
            raise DataError(f"A batch has {other!r}, which a model on Petals cannot take.")
    if batch.get("input_ids") is None:
        raise DataError(f"A batch has no 'input_ids', only {', '.join(map(str, batch))}.")
    input_ids = batch["input_ids"].to("cpu", torch.int64)
    columns = torch.arange(1, input_ids.shape[1] + 1)
    mask = batch.get("attention_mask")
    if mask is None:
        is_text = torch.ones_like(input_ids) if pad_token_id is None else input_ids != pad_token_id
        lengths = (is_text * columns).amax(dim=1)
        is_right = lengths > 0
    else:
        mask = mask.to("cpu", torch.bool)
        lengths = mask.sum(dim=1)
        is_right = (mask == (columns <= lengths[:, None])).all(dim=1) & (lengths > 0)
    if not is_right.all():
        row = int((~is_right).nonzero()[0])
        what = "has no token" if not lengths[row] else "is padded on the left, or masked inside"
        raise DataError(
            f"{name(row)} {what}. Models on Petals take no mask, so padding has to be on the right: set "
            "tokenizer.padding_side = 'right'."
        )
    return input_ids[:, : int(lengths.max())], lengths


def logits_from_swarm(
    model: nn.Module,
    texts: Iterable[tuple[Key, torch.Tensor, torch.Tensor]],
    topology: Topology,
    *,
    in_flight: int | None = None,
    name: Callable[[Key], str] = str,
) -> Generator[tuple[Key, torch.Tensor], None, None]:
    """Sends batches through the servers of a Petals model, a window of requests at a time.

    Args:
        model: the model, with its current tuned tensors.
        texts: for each batch a key, and what `texts_of` returns. Large batches are split into requests.
        topology: of the ranks.
        in_flight: maximum number of requests in flight; adaptive if not set.
        name: returns the name of a batch for messages.

    Yields:
        For each batch its key, and its logits, float32 of shape [batch, num_labels], in any order.

    Raises:
        ConfigError: the model is not an unmodified classifier of Petals.
        EvaluationError: a batch got no logits; the message names it.
    """
    classifier = _classifier_on_swarm(model, topology)
    keys: dict[int, Key] = {}
    answers: dict[int, list[torch.Tensor | None]] = {}

    def requests() -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
        for number, (key, input_ids, lengths) in enumerate(texts):
            rows = max(1, MAX_TOKEN_BUDGET // (classifier.tuned.pre_seq_len + input_ids.shape[1]))
            pieces = [*zip(torch.split(input_ids, rows), torch.split(lengths, rows), strict=True)]
            keys[number], answers[number] = key, [None] * len(pieces)
            for place, (ids, ends) in enumerate(pieces):
                yield number, place, ids, ends

    def ask(request: tuple[int, int, torch.Tensor, torch.Tensor]) -> tuple[int, int, torch.Tensor]:
        number, place, ids, ends = request
        try:
            return number, place, torch.from_numpy(checked_answers(classifier, ids, ends)["logits"])
        except EvaluationError as error:
            raise type(error)(f"{name(keys[number])}: {error}") from error

    window = window_in_memory(
        topology,
        in_flight=in_flight,
        tokens=MAX_TOKEN_BUDGET,
        hidden_size=classifier.tuned.head.shape[1],
        timeout=cast(SwarmBackbone, classifier.backbone).requests.timeout,
    )
    with closing(map_in_flight(ask, requests(), window, retries=lambda: classifier.retries)) as answered:
        for number, place, logits in answered:
            answers[number][place] = logits
            found = [part for part in answers[number] if part is not None]
            if len(found) == len(answers[number]):
                del answers[number]
                yield keys.pop(number), torch.cat(found)


def _classifier_on_swarm(model: nn.Module, topology: Topology) -> Classifier:
    """Builds a classifier from a Petals model, reusing the server statistics of earlier ones."""
    _require_unmodified(model)
    classifier = classifier_of(model, _requests.get(model), seed=topology.rank)
    _requests[model] = cast(SwarmBackbone, classifier.backbone).requests
    return classifier


def _require_unmodified(model: nn.Module) -> None:
    """Checks that a model's logits follow from its prompts and its head alone."""
    head = getattr(model, "score", None)
    problem = None
    if not type(model).forward.__module__.startswith(("petals.", "transformers.")):
        problem = f"{type(model).__name__} overrides forward"
    elif type(head) is not nn.Linear or head.bias is not None:
        problem = f"its head is {head!r} instead of a linear layer without bias, 'score'"
    elif any(module._forward_hooks or module._forward_pre_hooks for module in (model, head)):
        problem = "hooks change what goes in or out"
    if problem:
        raise ConfigError(
            f"Only unmodified classifiers of Petals can be evaluated on a swarm, but {problem}. Wrap the model in a "
            "module of your own, whose forward is called."
        )


def rows_named(positions: np.ndarray) -> str:
    """Names the examples of a batch for a message, without repeats."""
    real = positions[positions >= 0]
    if not len(real):
        return "A batch of repeats"
    return f"Example {real[0]}" if len(real) == 1 else f"Examples {real.min()} to {real.max()}"
