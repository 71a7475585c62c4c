"""Padded batches: moves the real tokens of each row to the left, so a swarm needs no mask.

Attention is causal, so padding on the right affects no real token, and each row's outputs are those of the row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from dist_eval.errors import DataError


class Rows:
    """The real tokens of the rows of a batch.

    `real` is whether a column of a row is a token, not padding; bool of shape [rows, columns].
    """

    def __init__(self, real: torch.Tensor) -> None:
        self.real, self.counts = real, real.sum(dim=1)
        self.longest = max(1, int(self.counts.max()) if len(real) else 0)
        order = torch.argsort(real.to(torch.int8), dim=1, descending=True, stable=True)
        self._places = order[:, : self.longest]  # columns of the real tokens, then of some padding
        columns = torch.arange(self.longest, device=real.device)
        self._are_in_place = bool((self._places == columns).all())

    def moved_left(self, values: torch.Tensor) -> torch.Tensor:
        """Moves the values of real tokens before those of padding: [rows, columns, ...] → [rows, longest, ...]."""
        if self._are_in_place:
            return values[:, : self.longest]
        return values[torch.arange(len(values))[:, None], self._places]


def put_back(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """Places values, of shape [n, width], row by row where a mask is true; the other values are zero.

    The mask has n true values, bool of shape [rows, columns]. The result has shape [rows, columns, width].
    """
    if bool(where.all()):
        return values.view(*where.shape, -1)
    where = where.to(values.device)
    return values.new_zeros(*where.shape, values.shape[1]).index_put(where.nonzero(as_tuple=True), values)


_needed: ContextVar[torch.Tensor | None] = ContextVar("needed", default=None)


@contextmanager
def only_columns(needed: torch.Tensor | None) -> Iterator[None]:
    """Sets the needed outputs of a base model within the context; bool of shape [rows or 1, columns], None for all."""
    token = _needed.set(needed)
    try:
        yield
    finally:
        _needed.reset(token)


def needed_columns(real: torch.Tensor) -> torch.Tensor:
    """Returns which real columns are needed, bool of shape [rows, columns]."""
    needed = _needed.get()
    return real if needed is None else real & needed.to(real.device)


def real_columns(mask: torch.Tensor | None, earlier: torch.Tensor, columns: int) -> torch.Tensor:
    """Returns which of the new columns are real, bool of shape [rows, columns].

    `mask` is the `attention_mask` of all columns, of shape [rows, n + columns]; None if all new ones are real.
    `earlier` says which earlier columns are real, bool of shape [rows, n]; the mask must agree with it.
    """
    rows, before = earlier.shape
    if mask is None:
        return torch.ones(rows, columns, dtype=torch.bool, device=earlier.device)
    if mask.ndim != 2 or mask.shape != (rows, before + columns):
        raise DataError(
            f"The attention_mask has shape {list(mask.shape)}. A model on a swarm takes one of shape "
            f"{[rows, before + columns]}, with a column for each token of the texts so far."
        )
    real = mask.to(earlier.device) != 0
    if not torch.equal(real[:, :before], earlier):
        raise DataError("The attention_mask differs from the one of the first part of the texts.")
    return real[:, before:]


def require_consecutive(positions: torch.Tensor | None, earlier: torch.Tensor, real: torch.Tensor) -> None:
    """Checks that tokens have the positions that they would have in each row alone.

    Positions may not be skipped or start elsewhere, and no padding may be between tokens.

    Args:
        positions: `position_ids`, int64 of shape [rows or 1, columns], by default the numbers of the columns.
        earlier: which earlier columns are real, bool of shape [rows, n].
        real: which new columns are real, bool of shape [rows, columns].
    """
    whole = torch.cat([earlier, real], dim=1)
    if positions is None:
        positions = torch.arange(earlier.shape[1], whole.shape[1], device=real.device).unsqueeze(0)
    elif positions.ndim != 2 or positions.shape[1] != real.shape[1]:
        raise DataError(f"position_ids have shape {list(positions.shape)} instead of {list(real.shape)}.")
    ranks = (whole.cumsum(dim=1) - 1)[:, earlier.shape[1] :]
    # columns of padding before the first token of a row, if it has any
    padding = whole.to(torch.int8).argmax(dim=1, keepdim=True)
    skipped = positions.to(real.device) - ranks
    fits = ((skipped == 0) | ~real).all(dim=1) | ((skipped == padding) | ~real).all(dim=1)
    if not fits.all():
        advice = "pad on the left or on the right only."
        if earlier.shape[1]:
            advice = "texts that generate continues need padding on the left (tokenizer.padding_side='left')."
        raise DataError(
            f"Row {int((~fits).nonzero()[0])} of a batch is masked between tokens, or has position_ids that skip some. "
            f"The servers of a swarm take whole texts: {advice}"
        )
