"""Padding on either side of the rows of a batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.errors import DataError
from dist_eval.petals.model.rows import Rows, put_back, real_columns, require_consecutive

PADDED = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=4)
"""Columns of padding, of text and of padding again, for each row."""


def mask_of(rows: list[tuple[int, int, int]]) -> torch.Tensor:
    columns = max(map(sum, rows))
    mask = torch.zeros(len(rows), columns, dtype=torch.bool)
    for row, (before, tokens, _) in enumerate(rows):
        mask[row, before : before + tokens] = True
    return mask


@given(PADDED)
def test_tokens_are_moved_to_the_left_and_back(parts: list[tuple[int, int, int]]) -> None:
    mask = mask_of(parts)
    values = torch.arange(1.0, 1 + mask.numel()).view(*mask.shape, 1)
    rows = Rows(mask)
    moved = rows.moved_left(values)
    for row, count in enumerate(rows.counts.tolist()):
        assert torch.equal(moved[row, :count], values[row][mask[row]])
    assert torch.equal(put_back(moved[rows.moved_left(mask)], mask), values * mask.unsqueeze(2))


def test_gradients_come_back_to_their_columns() -> None:
    mask = mask_of([(2, 2, 0), (0, 4, 0)])
    values = torch.ones(2, 4, 1, requires_grad=True)
    rows = Rows(mask)
    weights = torch.arange(8.0).view(2, 4, 1)
    (put_back(rows.moved_left(values)[rows.moved_left(mask)], mask) * weights).sum().backward()
    assert torch.equal(values.grad, weights * mask.unsqueeze(2))


@given(PADDED, st.integers(0, 8))
def test_the_positions_of_transformers_are_those_of_each_row_alone(parts: list[tuple[int, int, int]], cut: int) -> None:
    mask = mask_of(parts)
    cut = min(cut, mask.shape[1])
    held, real = mask[:, :cut], mask[:, cut:]
    for positions in (None, torch.arange(cut, mask.shape[1])[None], (mask.long().cumsum(1) - 1)[:, cut:]):
        require_consecutive(positions, held, real)
    require_consecutive((mask.long().cumsum(1) - 1).masked_fill(~mask, 1)[:, cut:], held, real)


@pytest.mark.parametrize(
    ("mask", "positions"),
    [
        ([[1, 0, 1]], None),
        ([[1, 1, 1], [1, 1, 0]], [[0, 1, 2], [0, 2, 3]]),
        ([[1, 1, 1]], [[1, 2, 3]]),
        ([[0, 1, 1]], [[0, 2, 3]]),
        ([[1, 1, 1]], [[0, 1]]),
    ],
)
def test_positions_that_a_row_alone_would_not_have_are_refused(
    mask: list[list[int]], positions: list[list[int]] | None
) -> None:
    real = torch.tensor(mask, dtype=torch.bool)
    given = None if positions is None else torch.tensor(positions)
    with pytest.raises(DataError, match=r"masked between tokens|have shape"):
        require_consecutive(given, real[:, :0], real)


def test_tokens_after_padding_follow_if_their_positions_say_so() -> None:
    held, real = torch.tensor([[True, False]]), torch.tensor([[True]])
    require_consecutive(torch.tensor([[1]]), held, real)
    with pytest.raises(DataError, match="masked between tokens"):
        require_consecutive(None, held, real)


def test_a_mask_is_of_all_columns_and_stays_what_it_was() -> None:
    held = torch.tensor([[False, True]])
    assert real_columns(torch.tensor([[0, 1, 1]]), held, 1).tolist() == [[True]]
    assert real_columns(None, held, 1).tolist() == [[True]]
    with pytest.raises(DataError, match=r"has shape \[1, 1\].* one of shape \[1, 3\]"):
        real_columns(torch.tensor([[1]]), held, 1)
    with pytest.raises(DataError, match="differs from the one"):
        real_columns(torch.tensor([[1, 1, 1]]), held, 1)
