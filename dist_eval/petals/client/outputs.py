"""Validates answers of servers, which may have any dtype, compression and shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_eval.errors import one_line
from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.payload import Payload

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
"""Dtypes that servers compute in, by their announced names."""

_FLOAT32_MAX = torch.finfo(torch.float32).max


def read_answer(tensors: Sequence[Payload], shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Deserializes and validates a server's answer.

    Raises `WrongAnswer` if the tensors cannot be read, have other shapes or dtypes, or are not finite.
    """
    try:
        outputs = [tensor.tensor().detach() for tensor in tensors]
    except Exception as error:  # any error of numpy and torch with arbitrary bytes
        raise WrongAnswer(f"tensors that cannot be read ({one_line(error)})") from error
    found = [tensor.shape for tensor in outputs]
    if found != list(shapes):
        raise WrongAnswer(f"shapes {[list(shape) for shape in found]} instead of {[list(shape) for shape in shapes]}")
    for tensor in outputs:
        if tensor.dtype not in DTYPES.values():
            raise WrongAnswer(f"values of dtype {tensor.dtype} instead of {', '.join(DTYPES)}")
        require_usable(tensor)
    return outputs


def require_usable(outputs: torch.Tensor) -> None:
    """Raises `WrongAnswer` if the next block cannot use a block's outputs."""
    # the next block squares them for its norm: larger values would make an honest server fail
    if not (_largest(outputs) ** 2 * outputs.numel() < _FLOAT32_MAX or _norm_is_finite(outputs)):
        finite = torch.isfinite(outputs).all()
        raise WrongAnswer("values too large to be squared" if finite else "values that are not finite")


def _largest(tensor: torch.Tensor) -> float:
    """Returns the largest absolute value, NaN if there is one; twenty times as fast as a norm in bfloat16."""
    return float(torch.stack(torch.aminmax(tensor)).abs().max()) if tensor.numel() else 0.0


def _norm_is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.linalg.vector_norm(tensor, dtype=torch.float32).isfinite())


def picked(hidden: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Returns hidden states at positions in batch x length, of shape [rows, hidden]; all of them if `rows` is None."""
    return hidden if rows is None else hidden.flatten(0, 1)[rows.to(hidden.device)]
