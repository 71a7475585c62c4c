"""Which of several hosts this one is: by address, never by a name that means another host elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_eval.cluster import hosts as hosts_module
from dist_eval.cluster.hosts import find_place, main
from dist_eval.errors import RunError
from dist_eval.process.addresses import (
    address_among,
    address_towards,
    interface_of,
    interfaces,
    is_loopback,
    outward,
    resolve,
)
from dist_eval.process.patching import patched

LOCAL = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.9.0.2", "fd00::2"], "ib0": ["10.8.0.2"]}
NAMES = {"a": ["10.9.0.1"], "b": ["10.9.0.2"], "debian": ["127.0.1.1"], "both": ["127.0.1.1", "10.9.0.2"]}


@pytest.fixture
def names() -> Iterator[None]:
    """Resolves the names above, and no other."""
    with patched(hosts_module, "resolve", lambda host: NAMES.get(host, [host] if host[0].isdigit() else [])):
        yield


@pytest.mark.usefixtures("names")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 20), st.data())
def test_a_host_finds_itself_at_any_position(count: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, count - 1))
    hosts = [f"10.9.1.{number}" for number in range(count)]
    hosts[position] = data.draw(st.sampled_from(["10.9.0.2", "b", "both"]))
    place = find_place(hosts, LOCAL)
    assert (place.node_rank, place.address, place.interface) == (position, "10.9.0.2", "eth0")
    assert place.head == ("10.9.0.2" if position == 0 else hosts[0])


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (["10.9.0.1", "10.9.0.3"], r"not in the list 10\.9\.0\.1, 10\.9\.0\.3: it has 10\.9\.0\.2 \(eth0\), fd00::2"),
        (["a", "debian"], r"name debian resolves to 127\.0\.1\.1 here, .* This host has 10\.9\.0\.2 \(eth0\)"),
        (["a", "nowhere"], "nowhere cannot be resolved"),
        (["10.9.0.2", "10.8.0.2"], r"more than once: 10\.9\.0\.2, 10\.8\.0\.2"),
    ],
)
def test_an_ambiguous_list_is_refused(hosts: list[str], words: str) -> None:
    with pytest.raises(RunError, match=words):
        find_place(hosts, LOCAL)


def test_a_single_host_may_be_given_by_loopback() -> None:
    place = find_place(["127.0.0.1"], LOCAL)
    assert (place.node_rank, place.interface, place.head) == (0, "lo", "127.0.0.1")


@pytest.mark.usefixtures("names")
def test_a_host_whose_name_is_loopback_takes_the_address_towards_the_others() -> None:
    local = interfaces()
    assert address_among("10.9.0.1", LOCAL) == address_towards("10.9.0.1")
    only = {"lo": ["127.0.0.1"], "eth0": ["10.9.0.2"]}
    assert address_among("debian", only) == "10.9.0.2"
    assert address_among("debian", {"lo": ["127.0.0.1"]}) is None
    assert address_among("debian", LOCAL) == address_towards("192.0.2.1")
    assert address_among("127.0.0.1", local) in {None, *itertools.chain(*outward(local).values())}


def test_this_host_knows_its_own_interfaces(capsys: pytest.CaptureFixture[str]) -> None:
    local = interfaces()
    assert any(is_loopback(address) for addresses in local.values() for address in addresses)
    assert "127.0.0.1" in resolve("localhost")
    assert resolve("no-such-host.invalid") == []
    assert interface_of("203.0.113.7", local) is None
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert not any(is_loopback(address) for addresses in outward(local).values() for address in addresses)
    assert main(["127.0.0.1"]) == 0
    assert capsys.readouterr().out == f"0 127.0.0.1 {interface_of('127.0.0.1', local)} 127.0.0.1\n"
    assert main(["203.0.113.7", "203.0.113.8"]) == 1
    assert "not in the list 203.0.113.7, 203.0.113.8" in capsys.readouterr().err
