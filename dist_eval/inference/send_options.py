"""Options for the computation of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dist_eval.data.plan import SharedPrefix
from dist_eval.petals.client.records import RouteSegment


@dataclass(frozen=True)
class SendOptions:
    """Options for the computation of a batch.

    Attributes:
        audited: whether other servers, if any, recompute it.
        avoided: segments to avoid if there is another route.
        shared: the shared prefix of its texts; None for a plain forward.
    """

    audited: bool = False
    avoided: Sequence[RouteSegment] = ()
    shared: SharedPrefix | None = None


ANY_ROUTE = SendOptions()
"""The default options."""
