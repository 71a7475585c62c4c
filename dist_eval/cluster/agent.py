"""`python -m dist_eval.cluster.agent`: torchrun, with an exit status that a scheduler can act on.

torchrun always exits with 1, so a scheduler cannot distinguish a wrong option from a graceful stop. This is torchrun
with all of its options and four differences:

- Ranks get a working address. If this host's name resolves to loopback, as configured by Debian and Ubuntu, it is the
  address towards the other hosts.
- The log folder is removed at the end, unless --log-dir names one.
- The ranks' store listens on a single address: loopback on a single host, otherwise the first host's address in the
  run's network. torch's store would listen on all interfaces and obey any peer.
- The exit status is:

    0         all ranks of this host completed
    2         an option of torchrun is wrong
    3         its ranks stopped gracefully because of a file STOP
    75        it received a signal, or its ranks stopped gracefully for another reason: run the same command again
    128 + n   the first rank of this host that failed was killed by signal n
    else      the exit status of the first rank of this host that failed; 1 if torchrun itself failed
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from types import FrameType
from typing import Any

from torch.distributed import DistError, DistNetworkError, TCPStore, run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError, c10d_rendezvous_backend, static_tcp_rendezvous
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from dist_eval.errors import error_summary, one_line
from dist_eval.process.addresses import address_among, interface_of, interfaces, is_loopback, resolve
from dist_eval.process.files import allow_many_files
from dist_eval.process.lifetime import workspace
from dist_eval.process.patching import patched
from dist_eval.process.ports import free_ports
from dist_eval.process.programs import FAILED, STOPPED, WRONG_OPTIONS, run_program

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNALLED, _LOOPBACK, _BACKLOG = 128, "127.0.0.1", 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the ranks of this host to their end."""
    allow_many_files()  # on the first host, all ranks connect to this process
    torchrun: Any = run
    options = torchrun.parse_args(list(sys.argv[1:] if arguments is None else arguments))
    _leave_ignored_signals(options)
    try:
        with _ending_on_signals(), workspace() as folder:  # torchrun would leave its own folder behind
            options.log_dir = options.log_dir or str(folder)
            try:
                torchrun.config_from_args(options)
            except (ValueError, AssertionError, RuntimeError) as error:
                print(f"dist_eval: an option of torchrun is wrong: {one_line(error)}", file=sys.stderr)
                return WRONG_OPTIONS
            _choose_addresses(options)
            with bound_stores():
                torchrun.run(options)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _pass_on([one.error_file_data for one in error.failures.values()])
        if failure.exitcode > 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        print(f"dist_eval: rank {rank} (process {failure.pid}) was killed by {name}", file=sys.stderr)
        return _SIGNALLED - failure.exitcode
    except SignalException as error:
        if error.sigval != signal.SIGINT:  # the person who pressed Ctrl-C knows
            print(f"dist_eval: ended by {error.sigval.name}", file=sys.stderr)
        return STOPPED
    except (DistError, RendezvousError, TimeoutError) as error:  # network errors
        print(f"dist_eval: the rendezvous of the hosts failed: {one_line(error)}", file=sys.stderr)
        return FAILED
    except Exception as error:  # such as a log folder that cannot be written
        print(f"dist_eval: torchrun failed: {error_summary(error)}", file=sys.stderr)
        return FAILED
    return 0


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Within this context, a signal ends this process, until torchrun has ranks to end.

    Until then, torchrun may wait for other hosts for an hour, in C++, where no handler in Python runs; and as the first
    process of a container, it would ignore the signals that have no handler.
    """
    ending = Lock()

    def end(number: int, _: FrameType | None = None) -> None:
        if not ending.acquire(blocking=False):
            return  # the other thread ends the process
        print(f"dist_eval: ended by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        os._exit(STOPPED)

    def watch() -> None:
        while number := received.recv(1):
            if signal.getsignal(number[0]) is end:
                end(number[0], None)

    earlier = {number: signal.signal(number, end) for number in _SIGNALS if _is_heeded(number)}
    received, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        written.close()
        thread.join()
        received.close()
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _is_heeded(number: int) -> bool:
    """Returns whether a signal is not ignored, as by `nohup`."""
    return signal.getsignal(number) is not signal.SIG_IGN


def _leave_ignored_signals(options: Any) -> None:
    """Lets torchrun and its ranks ignore what `nohup` ignores; torch before 2.9 lacks the option."""
    names = getattr(options, "signals_to_handle", "").split(",")
    ignored = {each.name for each in _SIGNALS if not _is_heeded(each)}
    options.signals_to_handle = ",".join(name for name in names if name.strip().upper() not in ignored)


def _pass_on(reports: Sequence[dict[str, Any]]) -> None:
    """Copies a rank's failure report to this process's own error file, as torchrun does."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    written = [report for report in reports if isinstance(report["message"], dict)]  # torchrun adds the others
    if path and written:
        with suppress(OSError):
            Path(path).write_text(json.dumps(written[0]))


def _choose_addresses(options: Any) -> None:
    """Sets the rendezvous of a single host; on several hosts, the address and interface to announce, unless set."""
    if options.nnodes in ("1", "1:1"):
        # this rendezvous keeps no pickles in its store
        options.standalone, options.rdzv_backend, options.rdzv_endpoint = False, "static", ""
        options.node_rank, options.master_addr = 0, _LOOPBACK
        options.master_port = options.master_port or free_ports(_LOOPBACK, 1)[0]
        return
    if not all(map(is_loopback, resolve(socket.gethostname()))):
        return
    endpoint, local = options.rdzv_endpoint or options.master_addr, interfaces()
    address = options.local_addr or address_among(endpoint.rpartition(":")[0] or endpoint, local)
    if address and (interface := interface_of(address, local)) and not is_loopback(address):
        options.local_addr = address
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


@contextmanager
def bound_stores() -> Iterator[None]:
    """Within this context, each store that torchrun opens listens only on its own address."""
    with (
        patched(static_tcp_rendezvous, "TCPStore", open_store),
        patched(c10d_rendezvous_backend, "TCPStore", open_store),
        patched(DynamicRendezvousHandler, "_create_tcp_store_server", _open_shared_store),
    ):
        yield


def open_store(
    host_name: str, port: int, world_size: int | None = None, is_master: bool = False, *others: Any, **options: Any
) -> TCPStore:
    """Opens a store with the arguments of `TCPStore`."""
    address = own_address(host_name) if is_master else None
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise DistNetworkError(f"the store cannot listen on {address}, port {port}: {reason}") from error
        port = listener.getsockname()[1]
        options["master_listen_fd"] = listener.detach()  # the store closes it
    return TCPStore(host_name, port, world_size, is_master, *others, **options)


def _open_shared_store(_: DynamicRendezvousHandler, master_addr: str, master_port: int) -> TCPStore:
    return open_store(master_addr, master_port, is_master=True, multi_tenant=True)


def own_address(host: str) -> str | None:
    """Returns the address of this host that other hosts know; None if it cannot be determined.

    It cannot if the name resolves to loopback, as Debian and Ubuntu configure a host's own name; to an address of
    another host, such as a router; or to several addresses of this host.
    """
    candidates = resolve(host)
    if host != "localhost" and host not in candidates:
        candidates = [address for address in candidates if not is_loopback(address)]
    local = interfaces()
    own = [address for address in candidates if is_loopback(address) or interface_of(address, local)]
    is_known = len(own) == 1 or all(map(is_loopback, own))  # peers on loopback resolve the name as this host does
    return own[0] if own and is_known else None


if __name__ == "__main__":
    run_program(main)
