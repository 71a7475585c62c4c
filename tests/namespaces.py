"""Several hosts on one machine: Linux network namespaces on a bridge, with addresses and host names of their own.

Needs root and iproute2. The file system is shared, as with a network folder; /etc/hosts is each host's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERFACE = "eth7"
_NETNS = Path("/etc/netns")


def why_not() -> str:
    """Returns why there can be no namespaces here, nothing if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need iproute2"
    name = f"de-{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode == 0:
        tried = subprocess.run(
            ["ip", "-n", name, "link", "add", "br0", "type", "bridge"], capture_output=True, text=True
        )
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True)
class Host:
    """One of the hosts.

    Attributes:
        name: its host name.
        address: its IP address.
        namespace: the network namespace.
        temporary: where its programs put temporary files, also those that are killed before they remove them.
    """

    name: str
    address: str
    namespace: str
    temporary: Path

    @property
    def port(self) -> str:
        """Name of the other end of its cable, in the switch."""
        return f"port-{self.name}"

    def command(self, *words: str) -> list[str]:
        """Returns the command that runs `words` on this host; it becomes them, so that its id is theirs."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *words]

    def start(self, *words: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Starts a program on this host."""
        kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **kwargs}
        environment = {**kwargs.pop("env", os.environ), "TMPDIR": str(self.temporary)}
        return subprocess.Popen(self.command(*words), env=environment, **kwargs)


class Network:
    """Hosts on one bridge, as a context manager.

    Args:
        names: of the hosts, by which all know each other.
    """

    def __init__(self, names: Sequence[str]) -> None:
        prefix = f"de-{uuid.uuid4().hex[:6]}"
        self._switch = f"{prefix}-switch"
        self._temporary = Path(tempfile.mkdtemp(prefix=f"{prefix}-"))
        self.hosts = [
            Host(name, f"10.93.0.{number}", f"{prefix}-{name}", self._temporary)
            for number, name in enumerate(names, start=11)
        ]

    def __enter__(self) -> Network:
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "dev", "br0", "up")
            for host in self.hosts:
                self._add(host)
            self.name_hosts()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            self.kill(host)
        for namespace in (self._switch, *(host.namespace for host in self.hosts)):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
            shutil.rmtree(_NETNS / namespace, ignore_errors=True)
        shutil.rmtree(self._temporary, ignore_errors=True)
        with contextlib.suppress(OSError):
            _NETNS.rmdir()

    def _add(self, host: Host) -> None:
        _ip("netns", "add", host.namespace)
        _ip("-n", self._switch, "link", "add", host.port, "type", "veth", "peer", "name", INTERFACE)
        _ip("-n", self._switch, "link", "set", "dev", INTERFACE, "netns", host.namespace)
        _ip("-n", self._switch, "link", "set", "dev", host.port, "master", "br0", "up")
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
        for link in ("lo", INTERFACE):
            _ip("-n", host.namespace, "link", "set", "dev", link, "up")
        (_NETNS / host.namespace).mkdir(parents=True)

    def name_hosts(self, awkward: Sequence[Host] = ()) -> None:
        """Writes each host's /etc/hosts, for programs that are started from now on.

        Args:
            awkward: hosts whose own name resolves to 127.0.1.1 on themselves, as Debian installs it.
        """
        for host in self.hosts:
            lines = ["127.0.0.1 localhost", *([f"127.0.1.1 {host.name}"] if host in awkward else [])]
            lines += [f"{other.address} {other.name}" for other in self.hosts if other is not host or not lines[1:]]
            (_NETNS / host.namespace / "hosts").write_text("\n".join(lines) + "\n")

    def cut_off(self, host: Host) -> None:
        """Takes the cable of a host out of the switch: nothing comes through any more, and nobody is told."""
        _ip("-n", self._switch, "link", "set", "dev", host.port, "down")

    def reconnect(self, host: Host) -> None:
        """Puts it back."""
        _ip("-n", self._switch, "link", "set", "dev", host.port, "up")

    def processes(self, host: Host) -> list[int]:
        """Returns the ids of all processes on a host."""
        found = subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True, text=True)
        return [int(number) for number in found.stdout.split()]

    def kill(self, host: Host) -> None:
        """Kills all processes of a host."""
        while numbers := self.processes(host):
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
