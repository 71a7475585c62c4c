"""Deep prompts that a server keeps: never more than there is room for, never those of another digest."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.petals.client.deep_prompts import digests_of
from dist_eval.petals.server.kept_prompts import KeptPrompts

ROOM = 10


def of_length(length: int) -> torch.Tensor:
    return torch.full((1, 1, length, 2), float(length))


@given(st.lists(st.lists(st.integers(1, ROOM // 2), min_size=1, max_size=2), max_size=12))
def test_the_latest_are_kept_within_the_room_that_there_is(requests: list[list[int]]) -> None:
    kept = KeptPrompts(ROOM)
    for lengths in requests:
        digests = [digests_of(of_length(length))[0] for length in lengths]
        for prompts in ([of_length(length)[0] for length in lengths], [None] * len(lengths)):
            found = kept.exchange(digests, prompts)
            assert found is not None and [one.unique().tolist() for one in found] == [[length] for length in lengths]
    asked = [(length, kept.exchange(digests_of(of_length(length)), [None])) for length in range(1, ROOM)]
    here = [length for length, found in asked if found is not None]
    assert sum(here) <= ROOM
    assert {*here} >= {*requests[-1]} if requests else not here


def test_what_is_kept_is_a_copy() -> None:
    kept, prompt = KeptPrompts(ROOM), torch.ones(1, 3, 2)
    kept.exchange([b"digest"], [prompt])
    prompt.zero_()
    (found,) = kept.exchange([b"digest"], [None]) or ()
    assert torch.equal(found, torch.ones(1, 3, 2))


def test_digests_tell_bytes_shapes_and_dtypes_apart() -> None:
    whole = torch.arange(12.0).to(torch.bfloat16).reshape(2, 1, 3, 2)
    variants = [whole, whole.view(torch.float16), whole.reshape(2, 1, 2, 3), whole + 12]
    digests = [digest for variant in variants for digest in digests_of(variant)]
    assert len({*digests}) == len(digests) == 8
    assert digests_of(whole[1:]) == digests_of(whole)[1:]
