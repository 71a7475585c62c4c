"""`python -m dist_eval.cluster.agent`: torchrun, with an exit status that a scheduler can act on.

torchrun ends with 1 whatever its ranks ended with, so that a scheduler cannot tell a wrong option from a run that
stopped in good order. This is torchrun itself, with all of its options; only its end is different:

    0         all ranks of this host were done
    75        it was told to end, or its ranks stopped in good order: start the same command again
    128 + n   the first rank of this host that failed was ended by signal n
    else      what the first rank of this host that failed ended with; 1 if there was no group of hosts
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from dist_eval.errors import first_line
from dist_eval.files import allow_many_files
from dist_eval.outcome import FAILED, STOPPED

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
        torchrun.run(options)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return _SIGNALLED - failure.exitcode if failure.exitcode < 0 else failure.exitcode
    except SignalException as error:
        print(f"dist_eval.cluster.agent: ended by {error.sigval.name}", file=sys.stderr)
        return STOPPED
    except Exception as error:  # torchrun's rendezvous and its store raise whatever the network did to them
        print(f"dist_eval.cluster.agent: the hosts did not come together: {first_line(error)}", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
