"""Checks each message of a client before Petals or a block sees it.

A server answers anyone who can reach it, and its handlers serve all clients. So every number in a message is bounded,
and all must agree with each other and with the bytes received. Values are checked where they are read
(`server_tasks.py`), and streams, bytes and timeouts on arrival (`guarded_p2p.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from dist_eval.petals.client.announcements import reason_of
from dist_eval.petals.client.chain import ChainRequest, read_request
from dist_eval.petals.client.deep_prompts import KEPT_TOKENS
from dist_eval.petals.client.payload import MOST_DIMENSIONS, Payload
from dist_eval.petals.server.metadata import METADATA_BYTES, Refused, checked_metadata, is_int, shown
from dist_eval.petals.server.request import Request

_SPARE_BYTES = METADATA_BYTES + (1 << 16)  # of a message, besides its tensors
_MOST_TENSORS = 4
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int64": 8}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_PLAIN, _FLOAT16 = 0, 2  # of `CompressionType`; decoders of the others trust the sizes in a message
_PLACEHOLDER = b"__T"


@dataclass(frozen=True)
class Guard:
    """Checks the messages to one server, and raises `Refused` for invalid ones.

    Attributes:
        uids: names of its blocks, in order.
        width: width of hidden states.
        tokens: most tokens of a message, including padding; also the most rows.
        positions: most tokens of a text in a session.
        adapters: names of available adapters.
    """

    uids: Sequence[str]
    width: int
    tokens: int
    positions: int
    adapters: Collection[str] = ()

    @property
    def request_bytes(self) -> int:
        """Largest request: hidden states and their gradient in float32, and prompts of the same size for each block."""
        return _SPARE_BYTES + 4 * self.width * self.tokens * (2 + len(self.uids))

    def forward(self, request: Request) -> ChainRequest | None:
        """Checks a forward: hidden states and deep prompts, or a chained request (see `petals.client.chain`).

        Returns where to pass it on; None for a request to this server alone.
        """
        chained, _, _ = self._inputs(request, self._blocks(request.uid), self._metadata(request))
        return chained

    def _inputs(
        self, request: Request, blocks: int, metadata: Mapping[str, Any], *names: str, may_be_empty: bool = False
    ) -> tuple[ChainRequest | None, tuple[int, int], list[Any]]:
        """Checks hidden states or token ids, prompts, and further tensors with the given names.

        Returns where to pass them on, if anywhere; rows and tokens; the further tensors.
        """
        chained = _chain_in(metadata)
        if chained is not None:
            metadata = {}  # their tensors always have this order
        if chained is not None and chained.ids:
            ids, prompts, *further, soft = _arguments(request, metadata, "token ids", "prompts", *names, "soft prompts")
            shape = self._token_ids(ids, soft)
        else:
            hidden, prompts, *further = _arguments(request, metadata, "hidden states", "prompts", *names)
            shape = self._hidden(hidden, may_be_empty=may_be_empty)
        if chained is not None:
            blocks += sum(hop.end - hop.start for hop in chained.chain)
            if (last := max(chained.rows or (), default=-1)) >= math.prod(shape):
                raise Refused(f"outputs of positions up to {last} are requested, but there are {math.prod(shape)}")
        self._prompts(prompts, blocks, shape)
        if chained is not None and chained.prompts is not None:
            _require_digests(chained.prompts, blocks, prompts)
            if not math.prod(shape):
                raise Refused("there are digests of prompts, but no tokens")
        return chained, shape, further

    def backward(self, request: Request) -> None:
        """Checks a backward: inputs, the gradient of the outputs, and deep prompts."""
        blocks = self._blocks(request.uid)
        names = "hidden states", "gradient", "prompts"
        hidden, gradient, prompts = _arguments(request, self._metadata(request), *names)
        shape = self._hidden(hidden)
        if self._hidden(gradient, "gradient") != shape:
            raise Refused(f"the gradient has size {_sizes(gradient)}, but the hidden states have {_sizes(hidden)}")
        self._prompts(prompts, blocks, shape)

    def opening(self, request: Request) -> tuple[Mapping[str, Any], ChainRequest | None]:
        """Checks the first message of a session, which is also its first step.

        Returns its metadata, and where to pass the steps on; None for a session with this server alone.
        """
        metadata = self._metadata(request)
        length: Any = metadata.get("max_length")
        if not is_int(length):
            raise Refused(f"max_length must be an integer, not {shown(length)}")
        if not 0 <= length <= self.positions:
            raise Refused(f"Cannot allocate KV cache for {length} tokens, max = {self.positions}")
        blocks = self._blocks(request.uid)
        if not request.tensors:
            raise Refused("the first message of a session has no tensors")
        chained = self.step(request, blocks)
        if chained is not None and metadata.get("session_id") is not None:
            raise Refused("a session whose steps are passed on cannot have a session_id, to which others push steps")
        return metadata, chained

    def step(self, request: Request, blocks: int) -> ChainRequest | None:
        """Checks a step of a session of `blocks` blocks: hidden states, deep prompts and an order of the rows.

        A step without tensors ends the session. Returns where to pass it on; None for a step of this server alone, and
        for the end.
        """
        metadata = self._metadata(request)
        if not request.tensors:
            return None
        chained, (rows, _), (order,) = self._inputs(request, blocks, metadata, "order", may_be_empty=True)
        _require_order(order, rows)
        return chained

    def push(self, request: Request) -> None:
        """Checks a step of a session that another server sends."""
        if not isinstance(self._metadata(request).get("session_id"), str):
            raise Refused("a pushed step must name its session_id")
        if self.step(request, self._blocks(request.uid)) is not None:
            raise Refused("a pushed step cannot be passed on")

    def info(self, uid: str) -> None:
        """Checks a question about a block, or about the server if `uid` is empty."""
        if uid and uid not in self.uids:
            raise Refused(f"this server does not serve {shown(uid)}")

    def _blocks(self, uid: str) -> int:
        """Checks the blocks that a request names, and counts them."""
        names = uid.split(" ", len(self.uids))
        start = self.uids.index(names[0]) if names[0] in self.uids else 0
        if names != list(self.uids[start : start + len(names)]):
            first, last = self.uids[0], self.uids[-1]
            raise Refused(f"this server serves consecutive blocks from {first} to {last}, not {shown(uid)}")
        return len(names)

    def _metadata(self, request: Request) -> Mapping[str, Any]:
        """Reads and checks the metadata of a message."""
        metadata = checked_metadata(request.metadata)
        adapter = metadata.get("active_adapter")
        if adapter and adapter not in self.adapters:
            raise Refused(f"adapter {shown(adapter)} not found")
        return metadata

    def _hidden(self, tensor: Payload, name: str = "hidden states", *, may_be_empty: bool = False) -> tuple[int, int]:
        """Checks hidden states, of shape [rows, n, width]; returns rows and n."""
        _require_whole(tensor, name, _FLOATS)
        if len(tensor.size) != 3 or tensor.size[2] != self.width:
            raise Refused(f"the {name} have size {_sizes(tensor)} instead of [rows, tokens, {self.width}]")
        rows, length = tensor.size[0], tensor.size[1]
        if not rows or not (length or may_be_empty):
            raise Refused(f"the {name} have {rows} rows of {length} tokens")
        self._require_room(rows * max(1, length))
        return rows, length

    def _token_ids(self, ids: Payload, soft: Payload) -> tuple[int, int]:
        """Checks token ids, of shape [rows, n], and soft prompts; returns rows and tokens of the resulting inputs."""
        _require_whole(ids, "token ids", ("int64",))
        _require_whole(soft, "soft prompts", _FLOATS)
        if len(ids.size) != 2 or 0 in ids.size:
            raise Refused(f"the token ids have size {_sizes(ids)} instead of [rows, tokens]")
        before = 0
        if 0 not in soft.size:
            if len(soft.size) != 2 or soft.size[1] != self.width:
                raise Refused(f"the soft prompts have size {_sizes(soft)} instead of [tokens, {self.width}]")
            before = soft.size[0]
        rows, length = ids.size[0], before + ids.size[1]
        self._require_room(rows * length)
        return rows, length

    def _require_room(self, size: int) -> None:
        if size > self.tokens:  # in Petals' words, which clients recognize
            raise Refused(f"Task size {size} is greater than max_batch_size ({self.tokens}), it can't be processed")

    def _prompts(self, tensor: Payload | None, blocks: int, shape: tuple[int, int]) -> None:
        """Checks deep prompts, of shape [blocks, rows or 1, pre_seq_len, width], or an empty tensor."""
        if tensor is None:
            return
        _require_whole(tensor, "prompts", _FLOATS)
        if 0 in tensor.size:
            return
        rows, length = shape
        fits = len(tensor.size) == 4 and tensor.size[0] == blocks and tensor.size[3] == self.width
        if not fits or tensor.size[1] not in (1, rows) or tensor.size[2] > length:
            wanted = f"[{blocks}, {rows} or 1, at most {length}, {self.width}]"
            raise Refused(f"the prompts have size {_sizes(tensor)} instead of {wanted}")


def _require_digests(digests: Sequence[bytes], blocks: int, prompts: Any) -> None:
    """Checks digests of deep prompts, and the prompts, which may be an empty tensor."""
    if len(digests) != blocks:
        raise Refused(f"there are digests of the prompts of {len(digests)} blocks instead of {blocks}")
    if prompts is not None and 0 not in prompts.size and (prompts.size[1] != 1 or prompts.size[2] > KEPT_TOKENS):
        raise Refused(f"prompts of size {_sizes(prompts)} are not kept: at most [{blocks}, 1, {KEPT_TOKENS}, ...]")


def _chain_in(metadata: Mapping[str, Any]) -> ChainRequest | None:
    try:
        return read_request(metadata)
    except ValidationError as error:
        raise Refused(f"metadata: {reason_of(error)}") from error


def _arguments(request: Request, metadata: Mapping[str, Any], *names: str) -> list[Any]:
    """Returns the tensors of a message in the order of `names`; None for omitted prompts."""
    tensors = request.tensors
    if len(tensors) > _MOST_TENSORS:
        raise Refused(f"a request has at most {_MOST_TENSORS} tensors, not {len(tensors)}")
    for tensor in tensors:
        tensor.head.requires_grad = False  # not needed, and blocks change their inputs in place
    found = list(tensors)
    if (structure := metadata.get("args_structure")) is not None:
        found = _in_order(found, structure)
    if len(found) < len(names):
        raise Refused(f"a request needs {len(names)} tensors ({', '.join(names)}), not {len(found)}")
    missing = [name for name, tensor in zip(names, found, strict=False) if tensor is None and name != "prompts"]
    if missing:
        raise Refused(f"a request needs the {missing[0]}")
    for further in tensors:
        if not any(further is tensor for tensor in found[: len(names)]):
            _require_whole(further, "further tensors", tuple(_ITEM_BYTES))
    return found[: len(names)]


def _in_order(tensors: Sequence[Payload], structure: Any) -> list[Any]:
    """Resolves the arguments in a structure of placeholders (`petals.utils.packaging`)."""
    places = {_PLACEHOLDER + str(index).encode(): tensor for index, tensor in enumerate(tensors)} | {None: None}
    arguments, named = structure if len(structure) == 2 else ((), None)
    are_few = named == {} and isinstance(arguments, (list, tuple)) and len(arguments) <= _MOST_TENSORS
    if are_few and all(isinstance(one, bytes | None) and one in places for one in arguments):
        return [places[one] for one in arguments]
    raise Refused(f"metadata: args_structure does not name the {len(tensors)} tensors of the request")


def _require_whole(tensor: Payload, name: str, dtypes: Collection[str]) -> None:
    """Checks that a serialized tensor has the bytes that its size and dtype require."""
    dtype: str = tensor.head.dtype
    if dtype not in dtypes:
        raise Refused(f"the dtype of the {name} is {shown(dtype)} instead of {' or '.join(dtypes)}")
    if len(tensor.size) > MOST_DIMENSIONS:
        raise Refused(f"the {name} have {len(tensor.size)} dimensions")
    numbers, found = math.prod(tensor.size), len(tensor.data)
    compression = tensor.head.compression
    if compression == _FLOAT16 and dtype not in ("bfloat16", "int64"):
        widths: tuple[int, ...] = (2,)
    elif compression == _PLAIN:  # hivemind may send bfloat16 as float32
        widths = (2, 4) if dtype == "bfloat16" else (_ITEM_BYTES[dtype],)
    else:
        raise Refused(f"the {name} have a compression that this server does not support ({compression})")
    if found not in [numbers * width for width in widths]:
        raise Refused(f"the {name} have {found} bytes, which does not match size {_sizes(tensor)} of {dtype}")


def _require_order(tensor: Payload, rows: int) -> None:
    """Checks the order of a session's rows: empty, or for each row the one that it continues."""
    import numpy as np

    _require_whole(tensor, "order", ("int64",))
    if 0 in tensor.size:
        return
    if list(tensor.size) != [rows]:
        raise Refused(f"the order has size {_sizes(tensor)} instead of [{rows}]")
    order = np.frombuffer(tensor.data, dtype=np.int64)
    if order.min() < 0 or order.max() >= rows:
        raise Refused(f"the order names rows {order.min()} to {order.max()} of a session of {rows}, counted from 0")


def _sizes(tensor: Payload) -> str:
    return shown(list(tensor.size))
