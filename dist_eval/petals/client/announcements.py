"""Checks and compares the announcements of servers.

Anyone who can reach a swarm can write to its DHT, and a server may answer anything. Implausible values are dropped
here, so all other modules can rely on types and bounds. The fields are those that servers of Petals 2.2.0 and of its
main branch write (`petals.data_structures`: `ServerInfo.to_tuple` and `ModelInfo.to_dict`) and answer (`rpc_info` of
`petals.server.handler`).
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgpack
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.records import Announcement
from dist_eval.printable import printable

MOST_BLOCKS = 1000
"""Most blocks of a model; the largest that Petals can serve have 126."""

_FASTEST, _SLOWEST = 1e8, 1e-3  # Plausible speeds, in tokens per second through a block

_MOST_CACHE_TOKENS = 2**40
_LONGEST_NAME, _LONGEST_IDENTIFIER, _MOST_ADAPTERS, _LONGEST_REASON = 100, 1000, 100, 200
# Code of hivemind's msgpack extension for tuples, and the most nested ones: each level takes 40 KiB of the decoder's
# stack, so 250 of them would end the process
_TUPLE, _MOST_NESTED = 0x40, 4
_TENSOR = 0x51  # Code of hivemind's msgpack extension for the description of a tensor

State = Literal["offline", "joining", "online"]
_STATES: tuple[State, ...] = ("offline", "joining", "online")  # by their numbers on the wire


def _require_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has control characters")
    return text


Identifier = Annotated[
    str, Field(min_length=1, max_length=_LONGEST_IDENTIFIER), AfterValidator(_require_printable)
]  # an adapter's hub name or path
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+!-]{1,50}$")]
Speed = Annotated[float, Field(ge=_SLOWEST, le=_FASTEST)]
Block = Annotated[int, Field(ge=0, le=MOST_BLOCKS)]


class _Announced(BaseModel):
    """Base of announcements; unknown fields of other versions are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class ServerRecord(_Announced):
    """A server's announcement for a block that it holds."""

    state: State
    # tokens per second, in any unit that its owner chooses; 0 if unknown
    throughput: Annotated[float, Field(ge=0, le=_FASTEST)]
    start_block: Block | None = None  # first block that it holds, if announced
    end_block: Block | None = None  # one past the last block
    # chosen by its owner
    public_name: Annotated[str, AfterValidator(lambda name: printable(name, _LONGEST_NAME))] | None = None
    version: Word | None = None  # of Petals
    forward_rps: Speed | None = None  # tokens per second through a block; None if not announced
    # its LoRA adapters
    adapters: Annotated[tuple[Identifier, ...], Strict(False), Field(max_length=_MOST_ADAPTERS)] = ()
    torch_dtype: Word | None = None  # dtype in which it computes
    quant_type: Word | None = None  # quantization of its weights
    # free attention cache, in tokens of a text times blocks
    cache_tokens_left: Annotated[int, Field(ge=0, le=_MOST_CACHE_TOKENS)] | None = None

    @model_validator(mode="after")
    def _holds_blocks(self) -> ServerRecord:
        if (self.start_block is None) != (self.end_block is None):
            raise ValueError("has only one end of its blocks")
        if self.start_block is not None and self.end_block is not None and self.start_block >= self.end_block:
            raise ValueError("holds no block")
        return self

    def is_above(self, other: ServerRecord) -> bool:
        """Whether its state is closer to online than that of another record."""
        return _STATES.index(self.state) > _STATES.index(other.state)


class _Model(_Announced):
    num_blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)]


class ServerInfo(_Announced):
    """A server's answer to `rpc_info` for a block."""

    # free attention cache, in tokens of a text times blocks
    cache_tokens_available: Annotated[int, Field(ge=0, le=_MOST_CACHE_TOKENS)]
    inference_schema: Any = None  # description of the tensors of a step of a session, unchecked


class Implausible(Exception):
    """A record is implausible and must be dropped; the message gives the reason."""


def read_server(value: Any, block: int) -> ServerRecord:
    """Reads a server's announcement for a block; raises `Implausible`."""
    match value:
        case (int(state), throughput, *rest) if 0 <= state < len(_STATES) and not isinstance(state, bool):
            fields = rest[0] if rest else {}
        case _:
            raise Implausible("the record is not a state, a throughput and a map")
    if not isinstance(fields, Mapping):
        raise Implausible("the record is not a state, a throughput and a map")
    if fields.get("forward_rps") == 0:
        fields = {**fields, "forward_rps": None}  # not measured
    try:
        record = ServerRecord.model_validate({**fields, "state": _STATES[state], "throughput": throughput})
    except ValidationError as error:
        raise Implausible(reason_of(error)) from error
    start, end = record.start_block, record.end_block
    if start is not None and end is not None and not start <= block < end:
        raise Implausible("a record of a block names other blocks")
    return record


def reason_of(error: ValidationError) -> str:
    """Describes in one line which field is wrong, and why."""
    first = error.errors(include_url=False)[0]
    where, what = ".".join(map(str, first["loc"])), first["msg"][:1].lower() + first["msg"][1:]
    return printable(f"{where} is {reprlib.repr(first['input'])}: {what}" if where else what, _LONGEST_REASON)


def read_model(prefix: Any, value: Any) -> tuple[str, int]:
    """Reads the announcement of a model; raises `Implausible`."""
    if not (isinstance(prefix, str) and prefix.isprintable() and 0 < len(prefix) <= _LONGEST_IDENTIFIER):
        raise Implausible("a model's name is empty, too long, or not printable text")
    try:
        return prefix, _Model.model_validate(value).num_blocks
    except ValidationError as error:
        raise Implausible(f"{printable(prefix, _LONGEST_NAME)}: {reason_of(error)}") from error


def read_info(packed: bytes) -> ServerInfo:
    """Reads a server's answer to `rpc_info` for a block."""
    try:
        return ServerInfo.model_validate(unpack(packed, extensions={_TENSOR: bytes}))
    except ValidationError as error:
        raise WrongAnswer("no plausible size of the free cache") from error


def unpack(packed: bytes, *, extensions: Mapping[int, Any] | None = None) -> Any:
    """Decodes bytes packed by hivemind, to a limited depth; None if they are invalid."""

    def decode(packed: bytes, depth: int) -> Any:
        def extension(code: int, data: bytes) -> Any:
            if code == _TUPLE and depth < _MOST_NESTED:
                return tuple(decode(data, depth + 1))
            return (extensions or {})[code](data)

        return msgpack.unpackb(packed, ext_hook=extension, raw=False)

    try:
        return decode(packed, 0)
    except Exception:  # any error of msgpack or a decoder with arbitrary bytes
        return None


def announcement_of(server: Any) -> Announcement:
    """Returns the part of a server's announcement that results contain."""
    return _announcement(server.torch_dtype, server.quant_type, server.version, tuple(server.adapters or ()))


def mixed_precisions(servers: Iterable[Announcement]) -> str:
    """Names the different precisions of servers; empty if all have the same."""
    names = sorted({server.precision for server in servers})
    if len(names) < 2:
        return ""
    return f"Servers compute differently ({', '.join(names)}): results will depend on the routes."


def mixed_versions(servers: Iterable[Announcement]) -> str:
    """Names the different versions of Petals of servers; empty if all have the same."""
    names = sorted({server.version or "unknown" for server in servers})
    return f"Servers run different versions of Petals ({', '.join(names)})." if len(names) > 1 else ""


@functools.lru_cache
def _announcement(
    dtype: str | None, quantization: str | None, version: str | None, adapters: tuple[str, ...]
) -> Announcement:
    return Announcement(dtype=dtype, quantization=quantization, version=version, adapters=adapters)
