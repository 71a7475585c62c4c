"""A model that a caller's program has loaded: how it is asked for logits, and left as it was found.

A Petals model is not asked by its own `forward`, which cannot take a mask and sends prompts with each example, but as
`python -m dist_eval` does it. That is right only as long as it is Petals' own classifier, which is checked.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np
import psutil
import torch
from torch import nn

from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import ConfigError, DataError, EvaluationError, ModelOutputError
from dist_eval.inference.in_flight import map_in_flight
from dist_eval.inference.window import Window, largest_window
from dist_eval.model.backbone import SwarmBackbone
from dist_eval.model.classifier import Classifier, classifier_of
from dist_eval.options.config import MAX_TOKEN_BUDGET

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests

Key = TypeVar("Key")

_VALUES_LOOKED_AT = 32
"""Of each tensor, to tell whether ranks have the same model."""

_requests: WeakKeyDictionary[nn.Module, SwarmRequests] = WeakKeyDictionary()
"""The way to each model's swarm, with what was learned about its servers."""


def without_wrapper(model: nn.Module) -> nn.Module:
    """Returns the model that `DistributedDataParallel` or `torch.compile` wraps.

    `DistributedDataParallel` may wait for all ranks in each forward. Ranks have as many batches as fall to them, so
    they would wait for ever.

    Raises:
        ConfigError: the model is sharded (FSDP, ZeRO-3), and cannot do a forward without all ranks.
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
    """Within this context a model is in eval mode and records no gradients; afterwards every part is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:  # outer modules come first, and take the inner ones along
            if module.training != mode:
                module.train(mode)


def is_on_swarm(model: Any) -> bool:
    """Whether a model is one of Petals', whose blocks a swarm hosts."""
    return any(kind.__module__.startswith("petals.models.") for kind in type(model).__mro__)


def fingerprint_of(model: nn.Module) -> str:
    """Describes a model's weights by a few values of each, which differ where two were not trained in step."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        flat = tensor.detach().flatten()
        some = flat[:: max(1, len(flat) // _VALUES_LOOKED_AT)]
        digest.update(f"{name} {list(tensor.shape)}".encode())
        digest.update(some.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def names_taken(model: nn.Module) -> Callable[[str], bool]:
    """Returns what tells whether a model's `forward` takes an argument of some name."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return lambda name: takes_any or name in parameters


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
            Without a mask a text ends before the `pad_token_id`s at its end.
        pad_token_id: of the model's config; None if it has none, and texts without a mask are as long as the batch.
        name: what a message calls a row of the batch.

    Returns:
        Token ids without columns of padding only, and the length of each text, int64 of shape [batch], on the CPU.

    Raises:
        DataError: a text is padded on the left, masked inside or empty, or the batch holds what Petals cannot take.
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
            f"{name(row)} {what}. Models on Petals take no mask, so padding has to stand on the right: set "
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
        model: the model; its tuned tensors as they are now count.
        texts: for each batch something to know it by, and what `texts_of` returns. Large ones are cut into requests.
        topology: where this process stands among the ranks.
        in_flight: how many requests may be under way; by itself if not set.
        name: what a message calls a batch.

    Yields:
        For each batch what it is known by, and its logits, float32 of shape [batch, num_labels], in any order.

    Raises:
        ConfigError: the model is no classifier of Petals as it is.
        EvaluationError: a batch got no logits; the message names it.
    """
    classifier = _classifier_on_swarm(model, topology)
    tuned, rows_left = classifier.tuned, dict[int, int]()
    keys, parts = dict[int, Key](), dict[int, list[torch.Tensor]]()

    def requests() -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
        for number, (key, input_ids, lengths) in enumerate(texts):
            rows = max(1, MAX_TOKEN_BUDGET // (tuned.pre_seq_len + input_ids.shape[1]))
            pieces = [*zip(torch.split(input_ids, rows), torch.split(lengths, rows), strict=True)]
            keys[number], parts[number], rows_left[number] = key, [torch.empty(0)] * len(pieces), len(pieces)
            for place, (ids, ends) in enumerate(pieces):
                yield number, place, ids, ends

    def ask(request: tuple[int, int, torch.Tensor, torch.Tensor]) -> tuple[int, int, torch.Tensor]:
        number, place, ids, ends = request
        try:
            return number, place, classifier.logits(ids, ends)
        except EvaluationError as error:
            raise type(error)(f"{name(keys[number])}: {error}") from error

    window = _window(classifier, topology, in_flight)
    with closing(map_in_flight(ask, requests(), window, retries=lambda: classifier.retries)) as answers:
        for number, place, logits in answers:
            parts[number][place] = logits
            rows_left[number] -= 1
            if not rows_left[number]:
                yield keys.pop(number), torch.cat(parts.pop(number))


def _classifier_on_swarm(model: nn.Module, topology: Topology) -> Classifier:
    """Makes a classifier of a Petals model as it is now, which knows what earlier ones learned about its servers."""
    _require_own_forward(model)
    classifier = classifier_of(model, _requests.get(model), seed=topology.rank)
    _requests[model] = cast(SwarmBackbone, classifier.backbone).requests
    return classifier


def _require_own_forward(model: nn.Module) -> None:
    """Refuses a model whose logits would be others than those of its prompts and its head.

    Raises:
        ConfigError: its forward, or its head, is not Petals' own.
    """
    head = getattr(model, "score", None)
    problem = None
    if not type(model).forward.__module__.startswith(("petals.", "transformers.")):
        problem = f"{type(model).__name__} has a forward of its own"
    elif type(head) is not nn.Linear or head.bias is not None:
        problem = f"its head is {head!r} instead of a linear layer without bias, 'score'"
    elif any(module._forward_hooks or module._forward_pre_hooks for module in (model, head)):
        problem = "hooks change what goes in or out"
    if problem:
        raise ConfigError(
            f"Only Petals' own classifiers can be evaluated on a swarm as they are, but {problem}. Wrap the model in a "
            "module of yours, which is called like any other."
        )


def _window(classifier: Classifier, topology: Topology, in_flight: int | None) -> Window:
    memory = psutil.virtual_memory().available * topology.hosts // topology.world_size
    largest = largest_window(MAX_TOKEN_BUDGET, classifier.tuned.head.shape[1], memory)
    return Window(in_flight, largest=largest, timeout=cast(SwarmBackbone, classifier.backbone).requests.timeout)


def rows_named(positions: np.ndarray) -> str:
    """Names the examples of a batch in a message, repeats left out."""
    real = positions[positions >= 0]
    if not len(real):
        return "A batch of repeats"
    return f"Example {real[0]}" if len(real) == 1 else f"Examples {real.min()} to {real.max()}"
