"""What servers announce about how they compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_eval.results.work import Announcement
from dist_eval.swarm.announcements import announcement_of, mixed_precisions, mixed_versions
from dist_eval.swarm.hivemind_compat import import_petals


def server(
    dtype: str | None = "float32", quantization: str | None = "none", version: str | None = "2.2"
) -> Announcement:
    return Announcement(dtype=dtype, quantization=quantization, version=version)


@pytest.mark.parametrize(
    ("servers", "precisions", "versions"),
    [
        ([], "", ""),
        ([server(), server(quantization=None)], "", ""),
        ([server(), server("bfloat16")], "(bfloat16, float32)", ""),
        ([server(), server(quantization="nf4"), server()], "(float32, float32 (nf4))", ""),
        ([server(version="2.3.0.dev2"), server(), server(version=None)], "", "(2.2, 2.3.0.dev2, unknown)"),
        ([server(None), server()], "(?, float32)", ""),
    ],
)
def test_differences_are_told(servers: list[Announcement], precisions: str, versions: str) -> None:
    for told, expected in ((mixed_precisions(servers), precisions), (mixed_versions(servers), versions)):
        assert expected in told
        assert bool(told) == bool(expected)


def test_an_announcement_is_read_from_what_petals_found(tmp_path: Path) -> None:
    import_petals(sockets=tmp_path)
    from petals.data_structures import ServerInfo, ServerState

    info = ServerInfo(ServerState.ONLINE, 1.0, version="2.3.0.dev2", adapters=["a/b"], torch_dtype="float16")
    expected = Announcement(dtype="float16", quantization=None, version="2.3.0.dev2", adapters=("a/b",))
    assert announcement_of(info) == expected
    assert announcement_of(ServerInfo(ServerState.ONLINE, 1.0)) == Announcement(adapters=())
