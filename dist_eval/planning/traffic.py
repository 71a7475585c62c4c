"""The bytes that a run exchanges with the servers of each range of blocks.

Activations travel in the dtype that a server computes in, and back in the same; deep prompts go to it once with each
batch (see `dist_eval.swarm.transport`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from dist_eval.data.answers import RouteSegment
from dist_eval.planning.record import HopValues, RangeTraffic

_TWO_BYTES = ("float16", "bfloat16")
_LARGE, _SMALL = 4, 2


def value_bytes(precision: str | None, compression: str = "none") -> int:
    """Returns the bytes of an activation for a server.

    Args:
        precision: dtype in which it computes, and its quantization if any; None if unknown.
        compression: value of `--compression`.
    """
    return _SMALL if compression == "float16" or (precision or "").partition(" ")[0] in _TWO_BYTES else _LARGE


def range_traffic(
    routes: Mapping[RouteSegment, int], hop: HopValues, batches: int, compression: str = "none"
) -> list[RangeTraffic]:
    """Scales the routes of a probe up to all batches of a run.

    Args:
        routes: tokens that took each segment in the probe.
        hop: numbers that each server on the route would be sent if it were the only one.
        batches: batches of the run.
        compression: value of `--compression`.

    Returns:
        One entry for each range of blocks that some server computed at once, by first block.
    """
    first = min((segment.start for segment in routes), default=0)
    passed = sum(tokens for segment, tokens in routes.items() if segment.start == first)
    ranges: defaultdict[tuple[int, int], dict[RouteSegment, float]] = defaultdict(dict)
    for segment, tokens in routes.items():
        ranges[segment.start, segment.end][segment] = tokens / passed
    found = []
    for (start, end), shares in sorted(ranges.items()):
        there = back = 0.0
        for segment, share in shares.items():
            activations = share * hop.activations * value_bytes(segment.precision, compression)
            there += activations + share * hop.prompts * (end - start) * value_bytes(segment.precision)
            back += activations
        share = min(1.0, sum(shares.values()))
        found.append(
            RangeTraffic(
                start=start,
                end=end,
                servers=len({segment.peer for segment in shares}),
                share=share,
                requests=round(share * batches),
                bytes_sent=round(there),
                bytes_received=round(back),
            )
        )
    return found
