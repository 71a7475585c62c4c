"""A server that describes its sessions as one of BloomBee: `conftest.ForkedSwarm` starts it.

It announces the version of Petals main, too. If a session is opened with it, it creates a file `opened` beside its
identity.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

VERSION, TENSORS, OPENED = "2.3.0.dev2", 10, "opened"


def main() -> None:
    """Runs the server; the arguments are those of `dist_eval.petals.server.server`."""
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind
    from dist_eval.petals.server import server
    from dist_eval.petals.server.petals_server import import_server

    prepare_hivemind(sockets=Path(sys.argv[1]))
    import_server()
    import petals
    from petals.server import handler
    from petals.server import server as petals_server

    opened = Path(sys.argv[sys.argv.index("--identity_path") + 1]).with_name(OPENED)
    backend = petals_server.TransformerBackend
    get_info = backend.get_info

    def describe(self: Any) -> dict[str, Any]:
        info = get_info(self)
        (hidden, *_), named = info["inference_schema"]
        return {**info, "inference_schema": ((hidden,) * TENSORS, named)}

    async def infer(self: Any, requests: Any, context: Any) -> Any:
        opened.touch()
        raise NotImplementedError
        yield

    petals.__version__ = VERSION
    backend.get_info = describe
    handler.TransformerConnectionHandler.rpc_inference = infer
    server.main()


if __name__ == "__main__":
    main()
