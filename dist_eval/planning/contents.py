"""What is in a tokenized dataset: lengths, what was cut, which labels occur; and the bytes that a run exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dist_eval.data.answers import RouteSegment
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.problem_types import REGRESSION, Problem
from dist_eval.planning.record import CutTexts, HopValues, LabelCount, RangeTraffic, TargetRange, TextLengths

_TWO_BYTES = ("float16", "bfloat16")


def text_lengths(lengths: np.ndarray) -> TextLengths:
    """Summarizes tokens of texts, integers of shape [n], n at least 1."""
    return TextLengths(shortest=int(lengths.min()), median=float(np.median(lengths)), longest=int(lengths.max()))


def cut_texts(data: TokenizedDataset) -> CutTexts:
    """Summarizes what texts that are too long have lost."""
    lost, kept = int(data.cut.sum()), int(data.lengths.sum(dtype=np.int64))
    return CutTexts(
        texts=len(data.cut),
        tokens=lost,
        share=lost / (lost + kept),
        median=float(np.median(data.cut)) if len(data.cut) else 0.0,
        most=int(data.cut.max(initial=0)),
    )


def label_counts(labels: np.ndarray, names: Sequence[str], problem: Problem) -> list[LabelCount]:
    """Counts the examples of each class or label, with its name; none for a regression."""
    if problem is REGRESSION:
        return []
    counts = labels.sum(axis=0) if problem.is_wide else np.bincount(labels, minlength=len(names))
    return [
        LabelCount(label=name, examples=int(count), share=float(count / len(labels)))
        for name, count in zip(names, counts, strict=True)
    ]


def target_ranges(labels: np.ndarray, names: Sequence[str], problem: Problem) -> list[TargetRange]:
    """Summarizes the targets of each output of a regression, with its name; none for other problem types."""
    if problem is not REGRESSION:
        return []
    return [
        TargetRange(output=name, lowest=float(values.min()), mean=float(values.mean()), highest=float(values.max()))
        for name, values in zip(names, labels.T, strict=True)
    ]


def range_traffic(
    routes: Mapping[RouteSegment, int], hop: HopValues, batches: int, compression: str = "none"
) -> list[RangeTraffic]:
    """Scales the routes of a probe up to all batches of a run.

    Activations travel in the dtype that a server computes in, or as float16 with `--compression float16`, and back in
    the same; deep prompts go to it once with each batch (see `dist_eval.swarm.transport`).
    """
    first = min((segment.start for segment in routes), default=0)
    passed = sum(tokens for segment, tokens in routes.items() if segment.start == first)
    traffic = []
    for start, end in sorted({(segment.start, segment.end) for segment in routes}):
        segments = [segment for segment in routes if (segment.start, segment.end) == (start, end)]
        shares = {segment: routes[segment] / passed for segment in segments}
        sent = received = 0.0
        for segment, share in shares.items():
            size = 2 if (segment.precision or "").partition(" ")[0] in _TWO_BYTES else 4
            activations = share * hop.activations * (2 if compression == "float16" else size)
            sent += activations + share * hop.prompts * (end - start) * size
            received += activations
        total = min(1.0, sum(shares.values()))
        traffic.append(
            RangeTraffic(
                start=start,
                end=end,
                servers=len({segment.peer for segment in shares}),
                share=total,
                requests=round(total * batches),
                bytes_sent=round(sent),
                bytes_received=round(received),
            )
        )
    return traffic
