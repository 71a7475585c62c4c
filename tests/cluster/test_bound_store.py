"""A store listens at the address by which the ranks know it, and nowhere else."""

from __future__ import annotations

from datetime import timedelta

import psutil
import pytest

from dist_eval.cluster import agent
from dist_eval.cluster.agent import open_store, own_address
from dist_eval.cluster.hosts import resolve

LOCAL = {"lo": ["127.0.0.1", "::1"], "docker0": ["172.17.0.1"], "eth0": ["10.9.0.2", "fd00::2"]}
NAMES = {
    "head": ["10.9.0.2"],
    "head6": ["fd00::2"],
    "dual-stack": ["fd00::2", "10.9.0.2"],
    "docker": ["172.17.0.1", "10.9.0.2"],
    "one-here": ["10.7.0.1", "10.9.0.2"],
    "debian": ["127.0.1.1"],
    "both": ["127.0.1.1", "10.9.0.2"],
    "behind-a-router": ["10.7.0.1"],
    "unknown": [],
    "localhost": ["::1", "127.0.0.1"],
}


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("head", "10.9.0.2"),
        ("head6", "fd00::2"),
        ("both", "10.9.0.2"),
        ("10.9.0.2", "10.9.0.2"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "::1"),
        ("one-here", "10.9.0.2"),
        ("fd00:0::2", "fd00::2"),
        ("dual-stack", None),
        ("docker", None),
        ("debian", None),
        ("behind-a-router", None),
        ("10.7.0.1", None),
        ("unknown", None),
    ],
)
def test_the_address_is_the_one_that_the_others_know(
    host: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "interfaces", lambda: LOCAL)
    monkeypatch.setattr(agent, "resolve", lambda name: NAMES[name] if name in NAMES else resolve(name))
    assert own_address(host) == address


def test_it_listens_there_alone_and_serves_the_ranks() -> None:
    store = open_store("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    listening = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening if address.port == store.port] == ["127.0.0.1"]
    store.set("key", "value")
    client = open_store("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=10))
    assert client.get("key") == b"value"
    # torch's c10d takes this for a store that another process serves, and connects to it
    with pytest.raises(RuntimeError, match=rf"127\.0\.0\.1, port {store.port}: Address already in use"):
        open_store("127.0.0.1", store.port, is_master=True)
