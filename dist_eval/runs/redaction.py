"""Peers' addresses, which are not recorded, in what is recorded of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A peer's address, or its ID alone. An address begins only where a path does: from each of its parts, a long path
# without a peer would be searched to its end.
_PEER = re.compile(r"(?<![\w.:/-])[\w.:/-]*/p2p/[1-9A-HJ-NP-Za-km-z]{40,}|\b(?:Qm|12D3Koo)[1-9A-HJ-NP-Za-km-z]{40,}")


def without_peers(message: str, peers: Sequence[str]) -> str:
    """Returns a message without the addresses of these peers, and of any others."""
    for address in peers:
        message = message.replace(address, "(peer, not recorded)")
    return _PEER.sub("(peer, not recorded)", message)
