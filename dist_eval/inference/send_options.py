"""What constrains how a batch is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dist_eval.data.plan import SharedBeginning
from dist_eval.petals.client.records import RouteSegment


@dataclass(frozen=True)
class SendOptions:
    """What constrains how a batch is computed.

    Attributes:
        audited: whether other servers recompute it, where there are any.
        avoided: segments to avoid if there is another route.
        shared: what its texts begin with, to be computed once; None for a plain forward.
    """

    audited: bool = False
    avoided: Sequence[RouteSegment] = ()
    shared: SharedBeginning | None = None


ANY_ROUTE = SendOptions()
"""Constrains nothing."""
