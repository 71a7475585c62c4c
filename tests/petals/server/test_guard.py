"""What a server lets in. What it refuses in which words is in `test_hostile_clients`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hostile_client import packed
from hostile_client import request as request_message
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.petals.client.chain import ChainRequest
from dist_eval.petals.client.deep_prompts import KEPT_TOKENS
from dist_eval.petals.client.protocol import request_metadata
from dist_eval.petals.server.guard import Guard
from dist_eval.petals.server.metadata import FIELDS, Refused, read_metadata
from dist_eval.petals.server.request import Request
from dist_eval.petals.server.server_tasks import _prompt_of_each

WIDTH, UIDS = 8, ["m.0", "m.1", "m.2"]
GUARD = Guard(UIDS, width=WIDTH, tokens=64, positions=128, adapters=("folder/adapter",))
NONE, NO_ORDER = torch.empty(0), torch.empty(0, dtype=torch.int64)


def request(*args: Any, **fields: Any) -> Request:
    return Request.of(request_message(*args, **fields))


def hidden(rows: int = 2, length: int = 5) -> torch.Tensor:
    return torch.ones(rows, length, WIDTH)


def in_bfloat16(tensor: torch.Tensor, width: torch.dtype) -> Any:
    """As hivemind sends it: in two bytes, or in those of a float32."""
    raw = tensor.to(torch.bfloat16).view(torch.int16) if width == torch.int16 else tensor
    return packed(raw, dtype="bfloat16")


HONEST: dict[str, Callable[[], Any]] = {
    "ours": lambda: GUARD.forward(request("m.0 m.1 m.2", hidden(), NONE, metadata=request_metadata(2, None))),
    "one block": lambda: GUARD.forward(request("m.1", hidden(), torch.ones(1, 1, 5, WIDTH))),
    "prompts of each row": lambda: GUARD.forward(request("m.0 m.1", hidden(), torch.ones(2, 2, 3, WIDTH))),
    "an adapter": lambda: GUARD.forward(request("m.2", hidden(), NONE, metadata={"active_adapter": "folder/adapter"})),
    "as many tokens as there may be": lambda: GUARD.forward(request("m.2", hidden(8, 8), NONE)),
    "bfloat16": lambda: GUARD.forward(request("m.0", in_bfloat16(hidden(), torch.int16), NONE)),
    "bfloat16 as float32": lambda: GUARD.forward(request("m.0", in_bfloat16(hidden(), torch.float32), NONE)),
    "float16 as compression": lambda: GUARD.forward(
        request("m.0", packed(hidden().half(), dtype="float32", compression=2), NONE)
    ),
    "arguments without prompts": lambda: GUARD.forward(
        request("m.0", hidden(), metadata={"args_structure": ((b"__T0", None), {})})
    ),
    "fields of others": lambda: GUARD.forward(request("m.0", hidden(), NONE, metadata={"of": {"others": [1, (2, 3)]}})),
    "a gradient": lambda: GUARD.backward(request("m.0", hidden(), hidden(), NONE)),
    "a session": lambda: GUARD.opening(
        request("m.0", hidden(), torch.ones(1, 1, 2, WIDTH), torch.tensor([1, 1]), metadata={"max_length": 128})
    ),
    "a session that only asks for room": lambda: GUARD.opening(
        request("m.0 m.1", hidden(length=0), NONE, NO_ORDER, metadata={"max_length": 9, "session_id": "s"})
    ),
    "the end of a session": lambda: GUARD.step(request(""), 3),
    "a push": lambda: GUARD.push(
        request("m.0", hidden(), NONE, NO_ORDER, metadata={"session_id": "s", "next_servers": [["Qm", "t", 1, 3]]})
    ),
}


HOP = {"peer": "QmRxVLPuFyTNFHhxwGXpQ4KqjM5vDohjvnVSbdRW38bWd3", "start": 3, "end": 5, "patience": 1.0}
IDS = torch.zeros(2, 5, dtype=torch.int64)


def chained(*tensors: torch.Tensor, chain: Any = (HOP,), **fields: Any) -> ChainRequest | None:
    return GUARD.forward(request("m.0 m.1 m.2", *tensors, metadata={"chain": [*chain], **fields}))


def test_requests_to_pass_on_have_prompts_of_all_blocks_and_rows_that_there_are() -> None:
    assert chained(hidden(), NONE, rows=[9]) is not None
    assert chained(hidden(), torch.ones(5, 1, 2, WIDTH)) is not None
    assert chained(IDS, torch.ones(5, 1, 2, WIDTH), torch.ones(4, WIDTH), ids=True, rows=[17]) is not None
    assert chained(IDS, NONE, NONE, ids=True, chain=()) is not None
    for prompts in (NONE, torch.ones(5, 1, 2, WIDTH)):
        assert chained(hidden(), prompts, prompts=[bytes(32)] * 5) is not None


@pytest.mark.parametrize(
    ("tensors", "fields", "words"),
    [
        ((hidden(), torch.ones(3, 1, 2, WIDTH)), {}, r"instead of \[5, "),
        ((hidden(), NONE), {"rows": [10]}, "positions up to 10 are requested, but there are 10"),
        ((hidden(), NONE), {"chain": [{**HOP, "peer": "nobody"}]}, "peer"),
        ((hidden(), NONE), {"chain": [HOP, HOP]}, "gaps"),
        ((hidden(), NONE), {"chain": 5}, "chain"),
        ((IDS, NONE), {}, "dtype of the hidden states is 'int64'"),
        ((IDS, NONE), {"ids": True}, "needs 3 tensors"),
        ((IDS[0], NONE, NONE), {"ids": True}, "the token ids have size"),
        ((IDS, NONE, torch.ones(2, WIDTH + 1)), {"ids": True}, "the soft prompts have size"),
        ((IDS, NONE, torch.ones(60, WIDTH)), {"ids": True}, "is greater than max_batch_size"),
        ((hidden(), NONE), {"prompts": [bytes(32)] * 3}, "digests of the prompts of 3 blocks instead of 5"),
        ((hidden(), NONE), {"prompts": [bytes(31)] * 5}, "prompts"),
        ((hidden(), NONE), {"prompts": ["x" * 32] * 5}, "prompts"),
        ((hidden(), torch.ones(5, 2, 2, WIDTH)), {"prompts": [bytes(32)] * 5}, "are not kept"),
    ],
)
def test_other_requests_to_pass_on_are_refused(
    tensors: tuple[torch.Tensor, ...], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        GUARD.forward(request("m.0 m.1 m.2", *tensors, metadata={"chain": [HOP], **fields}))


def test_sessions_may_have_digests_of_the_prompts_of_all_blocks() -> None:
    def check(count: int) -> None:
        metadata = {"chain": [HOP], "max_length": 9, "prompts": [bytes(32)] * count}
        GUARD.opening(request("m.0 m.1 m.2", hidden(), NONE, NO_ORDER, metadata=metadata))

    check(5)
    with pytest.raises(Refused, match="of 4 blocks instead of 5"):
        check(4)


def test_pushed_steps_have_no_chain() -> None:
    metadata = {"session_id": "one", "chain": [], "prompts": [bytes(32)] * 3}
    with pytest.raises(Refused, match="cannot be passed on"):
        GUARD.push(request("m.0 m.1 m.2", hidden(), NONE, NO_ORDER, metadata=metadata))


def test_prompts_that_are_too_long_to_be_kept_have_no_digest() -> None:
    def check(length: int) -> None:
        prompts, metadata = torch.ones(1, 1, length, WIDTH), {"chain": [], "prompts": [bytes(32)]}
        guard.forward(request("m.0", torch.ones(1, 2000, WIDTH), prompts, metadata=metadata))

    guard = Guard(UIDS, width=WIDTH, tokens=2048, positions=2048)
    check(KEPT_TOKENS)
    with pytest.raises(Refused, match="are not kept"):
        check(KEPT_TOKENS + 1)


@pytest.mark.parametrize("what", HONEST)
def test_what_clients_send_passes(what: str) -> None:
    HONEST[what]()


VALUES: Any = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats()),
        *(st.text(max_size=5), st.binary(max_size=5)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*FIELDS])
SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 5, WIDTH, 64, 65, 2**16, 2**32 - 1]), max_size=5)


def tensor(size: list[int], dtype: str, numbers: int | None, compression: int) -> Any:
    count = min(512, math.prod(size)) if numbers is None else numbers
    return packed(torch.zeros(count), size=size, dtype=dtype, compression=compression)


TENSORS = st.builds(
    tensor,
    SIZES | st.just([2, 3, WIDTH]),
    st.sampled_from(["float32", "float32", "float16", "bfloat16", "int64", "object", ""]),
    st.none() | st.integers(0, 512),
    st.sampled_from([0, 0, 0, 2, 5]),
)


@given(st.lists(TENSORS, max_size=5), st.dictionaries(NAMES, VALUES, max_size=3), st.sampled_from(["m.0", "m.0 m.1"]))
def test_what_passes_can_be_read_and_has_shapes_that_fit(tensors: list[Any], metadata: Any, uid: str) -> None:
    received = request(uid, *tensors, metadata=metadata)
    for check, count in ((GUARD.forward, 2), (GUARD.backward, 3), (GUARD.opening, 3)):
        try:
            check(received)
        except Refused as error:
            assert len(str(error)) < 500
            continue
        found = [tensor.tensor() for tensor in received.tensors]
        if metadata.get("args_structure") is None:
            assert found[0].ndim == 3 and found[0].shape[2] == WIDTH and 1 <= found[0].shape[0] <= 64
            prompts = _prompt_of_each(found[count - 2 + (check == GUARD.backward)], [_Block()] * len(uid.split()))
            assert all(one is None or one.shape[1] <= found[0].shape[1] for one in prompts)


class _Block:
    dtype = torch.float32


@given(st.binary(max_size=200) | st.recursive(st.just(b"\xc0"), lambda inner: inner.map(lambda data: b"\x91" + data)))
def test_any_bytes_are_metadata_or_refused(data: bytes) -> None:
    try:
        assert isinstance(read_metadata(data), dict)
    except Refused as error:
        assert len(str(error)) < 500
