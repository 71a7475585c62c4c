"""`python -m dist_eval.cluster.agent`: torchrun, with an exit status that a scheduler can act on.

torchrun ends with 1 whatever its ranks ended with, so that a scheduler cannot tell a wrong option from a run that
stopped in good order. This is torchrun itself, with all of its options. But where this host's own name leads to a
loopback address, as Debian and Ubuntu install it, the ranks take the address that leads to the other hosts instead, and
its end is different:

    0         all ranks of this host were done
    2         an option of torchrun is wrong
    3         its ranks stopped in good order, because of a file STOP
    75        it was told to end, or its ranks stopped in good order otherwise: start the same command again
    128 + n   the first rank of this host that failed was ended by signal n
    else      what the first rank of this host that failed ended with; 1 if there was no group of hosts
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from dist_eval.cluster.hosts import address_among, interface_of, interfaces, is_loopback, resolve
from dist_eval.errors import first_line
from dist_eval.process.exit_status import FAILED, STOPPED, WRONG_OPTIONS
from dist_eval.process.files import allow_many_files

_SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the ranks of this host to their end.

    Args:
        arguments: the command line of torchrun, without its name.

    Returns:
        The exit status.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    allow_many_files()  # on the first host every rank of all hosts is connected with this process
    torchrun: Any = run
    options = torchrun.parse_args(list(sys.argv[1:] if arguments is None else arguments))
    try:
        torchrun.config_from_args(options)
    except (ValueError, AssertionError) as error:
        print(f"dist_eval: an option of torchrun is wrong: {first_line(error)}", file=sys.stderr)
        return WRONG_OPTIONS
    _be_reachable(options)
    try:
        torchrun.run(options)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        print(f"dist_eval: rank {rank} (process {failure.pid}) was ended by {name}", file=sys.stderr)
        return _SIGNALLED - failure.exitcode
    except SignalException as error:
        if error.sigval != signal.SIGINT:  # who pressed Ctrl-C knows
            print(f"dist_eval: ended by {error.sigval.name}", file=sys.stderr)
        return STOPPED
    except Exception as error:  # torchrun's rendezvous and its store raise whatever the network did to them
        print(f"dist_eval: the hosts did not come together: {first_line(error)}", file=sys.stderr)
        return FAILED
    return 0


def _be_reachable(options: Any) -> None:
    """Sets what a host with an awkward name has to say of itself, unless the caller has said it."""
    if options.nnodes in ("1", "1:1") or not all(map(is_loopback, resolve(socket.gethostname()))):
        return
    endpoint, own = options.rdzv_endpoint or options.master_addr, interfaces()
    address = options.local_addr or address_among(endpoint.rpartition(":")[0] or endpoint, own)
    if address and (interface := interface_of(address, own)) and not is_loopback(address):
        options.local_addr = address
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


if __name__ == "__main__":
    sys.exit(main())
