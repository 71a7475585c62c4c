"""What counts as an answer of a server, which chooses its dtype, compression and shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hivemind.compression.serialization import serialize_torch_tensor
from hivemind.proto import runtime_pb2
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.outputs import read_answer
from dist_eval.petals.client.payload import Payload

SHAPE = torch.Size((2, 3))
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def serialized(
    values: list[float] | torch.Tensor, own: torch.dtype, by: str = "NONE", **fields: object
) -> runtime_pb2.Tensor:
    """Serializes six values as a server does; `fields` are what it says otherwise."""
    tensor = torch.as_tensor(values).to(own).reshape(SHAPE)
    message = serialize_torch_tensor(tensor, runtime_pb2.CompressionType.Value(by))
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@given(arrays(np.float32, SHAPE.numel(), elements=st.floats(-1e4, 1e4, width=32)), st.sampled_from(DTYPES))
def test_values_in_the_dtypes_of_servers_are_read_to_the_last_bit(values: np.ndarray, dtype: torch.dtype) -> None:
    sent = torch.from_numpy(values).to(dtype).reshape(SHAPE)
    [read] = read_answer([Payload.of_message(serialized(sent, dtype, requires_grad=True))], [SHAPE])
    assert read.dtype == dtype
    assert torch.equal(read, sent)
    assert not read.requires_grad, "the server does not decide that"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (serialized([1e300] * 6, torch.float64), "dtype torch.float64"),  # infinite as soon as it is cast
        (serialized([1.0] * 6, torch.float64), "dtype torch.float64"),
        (serialized([1.0] * 6, torch.float64, "FLOAT16"), "dtype torch.float64"),
        (serialized([1.0] * 6, torch.float32, "FLOAT16", dtype="float64"), "dtype torch.float64"),
        (serialized([1.0] * 6, torch.float32, "FLOAT16", dtype="int8"), "dtype torch.int8"),
        (serialized([1] * 6, torch.int64), "dtype torch.int64"),
        (serialized([1] * 6, torch.bool), "dtype torch.bool"),
        (serialized([1] * 6, torch.complex64), "dtype torch.complex64"),
        (serialized([1.0, torch.inf, *[1.0] * 4], torch.float32), "not finite"),
        (serialized([1.0, torch.nan, *[1.0] * 4], torch.bfloat16), "not finite"),
        (serialized([1.0, torch.nan, *[1.0] * 4], torch.float32, "FLOAT16"), "not finite"),
        (serialized([3.4e38] * 6, torch.float32, dtype="bfloat16"), "not finite"),  # cast when it is read
        (serialized([3e38, *[1.0] * 5], torch.float32), "too large to be squared"),
        (serialized([3e38, *[1.0] * 5], torch.bfloat16), "too large to be squared"),
        (serialized([1.0] * 6, torch.float32, buffer=b"123"), "cannot be read"),
        (serialized([1.0] * 6, torch.float32, dtype="object"), "cannot be read"),
        (serialized([1.0] * 6, torch.float32, dtype="no dtype"), "cannot be read"),
        (serialized([1.0] * 6, torch.float32, compression=77), "cannot be read"),
        (serialized([1] * 6, torch.int64, requires_grad=True), "cannot be read"),
    ],
)
def test_anything_else_is_a_wrong_answer(message: object, said: str) -> None:
    with pytest.raises(WrongAnswer, match=said):
        read_answer([Payload.of_message(message)], [SHAPE])


def test_shapes_are_those_that_were_asked_for() -> None:
    message = serialized([1.0] * 6, torch.float32)
    for expected in ([], [SHAPE] * 2, [torch.Size((3, 2))]):
        with pytest.raises(WrongAnswer, match=r"shapes \[\[2, 3\]\] instead of"):
            read_answer([Payload.of_message(message)], expected)
