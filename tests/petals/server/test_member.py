"""One server of a swarm that spans hosts: the same peer at the same address after a restart, whoever starts first."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import TIMEOUT, Launcher, SwarmClient

from dist_eval import demo
from dist_eval.petals.__main__ import main
from dist_eval.petals.server.member import peers_to_join
from dist_eval.process.ports import free_ports

NAMES = ["QmZmNRxpVSgwCUQ1ncBqnmjUUzotKCQj6JPvWEd2YpBd57", "QmNYetLanhvQdm9Liu83dwqtTDEdJyTobjsywvVV4hDEDJ"]


def make_identities(folder: Path, address: str, servers: int = 2) -> list[str]:
    words = ["identities", "--servers", str(servers), "--address", address, "--folder", str(folder)]
    assert main(words) == 0
    return (folder / "peers.txt").read_text().split()


def adjacent_ports() -> str:
    """Returns the first digits of two free ports that differ in the last one, 0 and 1; connections get higher ones."""
    for tens in random.sample(range(2000, 3270), 100):
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 10 * tens))
            second.bind(("127.0.0.1", 10 * tens + 1))
            return str(tens)
    raise AssertionError("no free ports")


def test_identities_stay_when_servers_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = "/dns4/swarm-{}.swarm/tcp/31337"
    before = make_identities(tmp_path / "keys", address)
    assert capsys.readouterr().out.split() == before
    assert [peer.split("/p2p/")[0] for peer in before] == [f"/dns4/swarm-{n}.swarm/tcp/31337" for n in (0, 1)]
    assert len(set(before)) == 2
    assert (tmp_path / "keys" / "swarm-0.key").stat().st_mode & 0o777 == 0o600
    after = make_identities(tmp_path / "keys", address, servers=3)
    assert after[:2] == before


def test_only_the_first_server_may_start_a_swarm() -> None:
    (port,) = free_ports("127.0.0.1", 1)
    peers = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{name}" for name in NAMES]
    assert peers_to_join(peers, NAMES[0], wait=0.1) == []
    assert peers_to_join(peers, NAMES[1], wait=0.1) == peers[:1]
    assert peers_to_join([], NAMES[0]) == []


def test_the_first_server_joins_the_others_if_they_are_there() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        peers = [f"/ip4/127.0.0.1/tcp/9/p2p/{NAMES[0]}", f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}/p2p/{NAMES[1]}"]
        assert peers_to_join(peers, NAMES[0], wait=5.0) == peers[1:]


def test_servers_come_back_as_the_same_peers_and_the_first_one_joins_those_that_stayed(
    launcher: Launcher, swarm_client: SwarmClient, tmp_path: Path
) -> None:
    from dist_eval.petals.client.client import join_swarm, leave_swarm
    from dist_eval.petals.client.coverage import wait_until_covered
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    ports = adjacent_ports()
    keys = tmp_path / "keys"
    peers = make_identities(keys, f"/dns4/localhost/tcp/{ports}{{}}")
    prepare_hivemind(sockets=swarm_client.sockets)  # they were in a folder of the program's own

    def serve(number: int) -> subprocess.Popen[str]:
        where = ["--host", "127.0.0.1", "--port", f"{ports}{number}", "--peers-file", str(keys / "peers.txt")]
        share = ["--servers", "2", "--number", str(number), "--identity", str(keys / f"swarm-{number}.key")]
        command = ["-m", "dist_eval.petals", "serve", "--model", str(demo.BASE_MODEL), *share, *where]
        return launcher.start(*command, preloaded=True)

    def require_alive() -> None:
        for server in servers:  # say why, instead of waiting for one that has ended
            assert server.poll() is None, server.communicate()

    def found(*of: int) -> set[str]:
        dht = join_swarm([peers[number] for number in of], TIMEOUT, check=require_alive)
        coverage = wait_until_covered(dht, demo.BASE_MODEL.name, 4, TIMEOUT, servers=2, check=require_alive)
        leave_swarm(dht)
        return {server.peer_id for server in coverage.servers}

    servers = [serve(1), serve(0)]
    identities = {peer.rpartition("/")[2] for peer in peers}
    assert found(0, 1) == identities
    servers[1].send_signal(signal.SIGTERM)
    out, err = servers[1].communicate(timeout=TIMEOUT)
    assert (servers[1].returncode, err) == (0, "")
    assert f"starting blocks 0:2 of {demo.BASE_MODEL} at /ip4/127.0.0.1/tcp/{ports}0/p2p/" in out
    servers[1] = serve(0)
    assert found(1) == identities, "asked of the other server only"
    for server in servers:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=TIMEOUT)
    assert not launcher.leftovers()


@pytest.mark.slow
def test_a_server_takes_as_many_blocks_as_fit(launcher: Launcher, tmp_path: Path) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    make_identities(tmp_path, "/ip4/127.0.0.1/tcp/{}", servers=1)
    command = ["serve", "--model", str(demo.BASE_MODEL), "--blocks", "auto", "--host", "127.0.0.1", "--port", str(port)]
    server = launcher.start("-m", "dist_eval.petals", *command, "--identity", str(tmp_path / "swarm-0.key"))
    assert server.stdout
    assert server.stdout.readline().startswith(f"starting as many blocks as fit of {demo.BASE_MODEL} at /ip4/")
    assert server.stdout.readline().startswith("others join it, and runs find it, with --initial-peers /ip4/")
    assert server.stdout.readline().startswith("loaded blocks 0:4 in float32: ")
    server.send_signal(signal.SIGTERM)
    assert server.communicate(timeout=TIMEOUT)[1] == ""
    assert not launcher.leftovers()


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identities")
    make_identities(folder, "/ip4/127.0.0.1/tcp/2000{}")
    (folder / "strangers.txt").write_text(f"/ip4/127.0.0.1/tcp/9/p2p/{NAMES[0]}\n")
    (folder / "empty.txt").write_text("\n# none\n")
    return folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"--identity": "nowhere.key"}, "nowhere.key cannot be read"),
        ({"--identity": __file__}, "is not a key created by `identities`"),
        ({"--host": "swarm-0"}, "--host 'swarm-0' is not an IP address"),
        ({"--host": "192.0.2.1"}, "--host 192.0.2.1 is not an address of this machine, which has "),
        ({"--host": ""}, "--host: give the address at which others reach this machine. It has "),
        ({"--port": "0"}, "--port must be between 1 and 65535"),
        ({"--port": "TAKEN"}, ": cannot listen at 127.0.0.1: Address already in use. Choose another port."),
        ({"--initial-peers": "10.0.0.1"}, "--initial-peers: '10.0.0.1' is not a peer address"),
        ({"--number": "-1"}, "--number must be at least 0"),
        ({"--servers": "9"}, "9 servers cannot share 4 blocks"),
        ({"--blocks": "automatic"}, "'automatic' is not a span of blocks"),
        ({"--gpus": "99"}, "--gpus 99: this host has "),
        ({"--revision": "v1"}, "--revision v1 applies only to models on a hub, but "),
        ({"--peers-file": "nowhere.txt"}, "--peers-file nowhere.txt cannot be read"),
        ({"--peers-file": "strangers.txt"}, "does not contain Qm"),
        ({"--peers-file": "empty.txt"}, "--peers-file empty.txt holds no address"),
    ],
)
def test_invalid_options_are_one_clear_message(
    options: dict[str, str],
    words: str,
    identities: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(identities)
    right = {"--model": str(demo.BASE_MODEL), "--identity": "swarm-0.key", "--host": "127.0.0.1", **options}
    capsys.readouterr()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", *(port if word == "TAKEN" else word for option in right.items() for word in option)]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""


def test_a_model_that_cannot_be_read_leaves_no_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--model", "./nothing", "--host", "127.0.0.1", "--port", "41999"]) == 1
    assert not [*tmp_path.iterdir()]
