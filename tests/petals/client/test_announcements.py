"""What servers announce about themselves."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgpack
import pytest
from foreign_records import anything, nested, records
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.petals.client.announcements import (
    MOST_BLOCKS,
    Implausible,
    ServerRecord,
    announcement_of,
    mixed_precisions,
    mixed_versions,
    read_info,
    read_model,
    read_server,
    unpack,
)
from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.hivemind_compat import prepare_hivemind
from dist_eval.petals.client.records import Announcement
from dist_eval.petals.server.petals_server import import_server
from dist_eval.printable import printable


def server(
    dtype: str | None = "float32", quantization: str | None = "none", version: str | None = "2.2"
) -> Announcement:
    return Announcement(dtype=dtype, quantization=quantization, version=version)


@pytest.mark.parametrize(
    ("servers", "precisions", "versions"),
    [
        ([], "", ""),
        ([server(), server(quantization=None)], "", ""),
        ([server(), server("bfloat16")], "(bfloat16, float32)", ""),
        ([server(), server(quantization="nf4"), server()], "(float32, float32 (nf4))", ""),
        ([server(version="2.3.0.dev2"), server(), server(version=None)], "", "(2.2, 2.3.0.dev2, unknown)"),
        ([server(None), server()], "(?, float32)", ""),
    ],
)
def test_differences_are_told(servers: list[Announcement], precisions: str, versions: str) -> None:
    for told, expected in ((mixed_precisions(servers), precisions), (mixed_versions(servers), versions)):
        assert expected in told
        assert bool(told) == bool(expected)


def test_what_petals_writes_is_read(tmp_path: Path) -> None:
    prepare_hivemind(sockets=tmp_path)
    import_server()
    from hivemind.utils.serializer import MSGPackSerializer
    from petals.data_structures import ModelInfo, ServerInfo, ServerState

    def found(info: ServerInfo) -> ServerRecord | None:
        return read_server(unpack(MSGPackSerializer.dumps(info.to_tuple())), block=3)

    told: dict[str, Any] = {
        "start_block": 2, "end_block": 5, "public_name": "mine", "version": "2.3.0.dev2", "forward_rps": 1500.5,
        "network_rps": 7.0, "adapters": ["a/b"], "torch_dtype": "float16", "quant_type": "nf4",
        "cache_tokens_left": 4096, "next_pings": {"Qm": 0.1},
    }  # fmt: skip
    record = found(ServerInfo(ServerState.ONLINE, 10.0, **told))
    assert record is not None
    assert record.model_dump() == {
        **{name: value for name, value in told.items() if name not in ("network_rps", "next_pings")},
        "adapters": ("a/b",),
        "state": "online",
        "throughput": 10.0,
    }
    assert announcement_of(record) == Announcement(
        dtype="float16", quantization="nf4", version="2.3.0.dev2", adapters=("a/b",)
    )
    plain = found(ServerInfo(ServerState.JOINING, 1.0))
    assert plain == ServerRecord(state="joining", throughput=1.0)
    assert read_model("base", unpack(MSGPackSerializer.dumps(ModelInfo(4, "repo").to_dict()))) == ("base", 4)


ONLINE = [2, 1.0, {"start_block": 0, "end_block": 4}]
HONEST = ServerRecord(state="online", throughput=1.0, start_block=0, end_block=4)


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "online", {}, [], [2], [3, 1.0], [-1, 1.0], [True, 1.0], ["2", 1.0], [2, "1"], [2, 1e300],
        [2, float("nan")], [2, -1.0], [2, 1.0, []],
        *(
            [2, 1.0, {**ONLINE[2], **fields}]  # type: ignore[dict-item]
            for fields in (
                {"version": "9" * 5000}, {"version": 9}, {"forward_rps": 1e300}, {"forward_rps": 5e-324},
                {"end_block": None}, {"end_block": 0}, {"end_block": 300_000_000}, {"start_block": -1},
                {"start_block": 2}, {"end_block": True}, {"end_block": "4"}, {"public_name": 3},
                {"adapters": "ab"}, {"adapters": ["a"] * 101}, {"adapters": ["a\x1b[2J"]}, {"adapters": [["a"]]},
                {"torch_dtype": "\x1b[2Jfloat32"}, {"quant_type": "x" * 51}, {"cache_tokens_left": 10**18},
            )
        ),
    ],
    ids=lambda value: repr(value)[-40:],
)  # fmt: skip
def test_implausible_records_are_dropped(value: Any) -> None:
    assert read_server(ONLINE, block=1) == HONEST
    with pytest.raises(Implausible) as caught:
        read_server(value, block=1)
    assert 0 < len(str(caught.value)) < 250 and str(caught.value).isprintable()


def test_a_name_is_cut_and_cleaned_and_unknown_fields_are_ignored() -> None:
    fields = {"public_name": "\x1b]0;owned\x07" + "x" * 1_000_000, "forward_rps": 0, "next_pings": 5, "news": [1]}
    record = read_server([2, 1, fields], block=0)
    assert record.public_name is not None and record.public_name.startswith("\\x1b]0;owned\\x07xxx")
    assert len(record.public_name) < 200
    assert record.forward_rps is None


@pytest.mark.parametrize("value", [None, 4, {}, {"num_blocks": 0}, {"num_blocks": 300_000_000}, {"num_blocks": "4"}])
def test_implausible_models_are_dropped(value: Any) -> None:
    with pytest.raises(Implausible, match=r"^base: "):
        read_model("base", value)


@pytest.mark.parametrize("prefix", ["", 4, None, "a\nb", "a" * 1001])
def test_implausible_names_of_models_are_dropped(prefix: Any) -> None:
    with pytest.raises(Implausible, match="a model's name"):
        read_model(prefix, {"num_blocks": 4})


@pytest.mark.parametrize("left", ["9" * 400, -1, 1e300, None, True, 2**60])
def test_an_implausible_free_cache_is_a_wrong_answer(left: Any) -> None:
    assert read_info(msgpack.packb({"cache_tokens_available": 4096})).cache_tokens_available == 4096
    with pytest.raises(WrongAnswer, match="no plausible size of the free cache"):
        read_info(msgpack.packb({"cache_tokens_available": left}))


def test_nested_values_are_not_followed() -> None:
    assert unpack(nested(2)) == [((1,),)]
    assert unpack(nested(900)) is None
    with pytest.raises(WrongAnswer):
        read_info(nested(900))


@given(records, st.integers(0, MOST_BLOCKS - 1))
def test_any_record_is_read_as_one_that_is_typed_and_bounded_or_dropped(value: Any, block: int) -> None:
    try:
        record = read_server(value, block)
    except Implausible as error:
        assert str(error).isprintable()
        return
    assert record.state in ("offline", "joining", "online")
    assert 0 <= record.throughput <= 1e8
    assert record.forward_rps is None or 1e-3 <= record.forward_rps <= 1e8
    if record.start_block is not None or record.end_block is not None:
        assert record.start_block is not None and record.end_block is not None
        assert 0 <= record.start_block <= block < record.end_block <= MOST_BLOCKS
    assert record.public_name is None or record.public_name == printable(record.public_name, 1000)
    words = [record.version, record.torch_dtype, record.quant_type, *record.adapters]
    assert all(word is None or (type(word) is str and word.isprintable() and len(word) <= 1000) for word in words)
    assert len(record.adapters) <= 100
    assert record.cache_tokens_left is None or 0 <= record.cache_tokens_left <= 2**40
    announcement_of(record)


@given(st.binary() | anything.map(msgpack.packb))
def test_any_answer_about_the_free_cache_is_a_number_or_a_wrong_answer(packed: bytes) -> None:
    with contextlib.suppress(WrongAnswer):
        assert 0 <= read_info(packed).cache_tokens_available <= 2**40
