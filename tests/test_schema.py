"""The published schema of `results.json`: written results match it; missing, invalid or extra entries do not.

That every kind of run fits is shown wherever tests read results, by `results_of`, and after each test that leaves some
in its folder, by `results_that_fit_the_schema` (both in conftest.py).
"""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import results_of
from samples import FACTS, complete_run, config_for, folder_of

from dist_eval.options.config import EvaluationConfig
from dist_eval.options.harness import HarnessConfig
from dist_eval.schema import SCHEMA_VERSION, results_schema

VALIDATOR = jsonschema.Draft202012Validator(results_schema())


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("complete")
    complete_run(folder).close()
    return results_of(folder)


def test_it_is_a_schema_of_the_version_that_is_written() -> None:
    jsonschema.Draft202012Validator.check_schema(results_schema())
    for record in ("RunningRun", "EndedRun", "CompleteRun"):
        assert results_schema()["$defs"][record]["properties"]["schema_version"]["const"] == SCHEMA_VERSION


def test_it_knows_every_option() -> None:
    for name, options in (("Config", EvaluationConfig), ("HarnessConfig", HarnessConfig)):
        known = results_schema()["$defs"][name]["properties"]
        fields = {field.name: field.metadata["help"] for field in dataclasses.fields(options)}
        fields["initial_peers"] = "number of addresses, which are not recorded"
        assert {option: known[option]["description"] for option in known} == fields
    known = results_schema()["$defs"]["Config"]["properties"]
    assert (known["initial_peers"]["type"], known["metric"]["type"]) == ("string", "array")
    assert known["on_error"]["enum"] == ["stop", "skip"]
    assert [choice["type"] for choice in known["max_length"]["anyOf"]] == ["integer", "null"]


def test_every_field_is_described() -> None:
    definitions = results_schema()["$defs"]
    assert [name for name, record in definitions.items() if "description" not in record] == []
    silent = [
        (record, name)
        for record, definition in definitions.items()
        for name, field in definition["properties"].items()
        if not field.get("description")
    ]
    assert silent == []


def test_the_program_prints_it() -> None:
    printed = subprocess.run([sys.executable, "-m", "dist_eval.schema"], capture_output=True, check=True)
    assert json.loads(printed.stdout) == results_schema()


@pytest.mark.parametrize("end", ["fail", "stop"])
def test_runs_that_are_not_complete_fit(tmp_path: Path, end: str) -> None:
    run = folder_of(config_for(tmp_path))
    run.open()
    assert results_of(tmp_path)["status"] == "running"
    getattr(run, end)("why", rank=1, host="here", coverage=FACTS["coverage"])
    assert results_of(tmp_path)["coverage"] == FACTS["coverage"]


LEFT_OUT_IF_EMPTY = {("Decoding", "settings")}


def test_nothing_can_be_added_or_left_out() -> None:
    for kind, record in results_schema()["$defs"].items():
        assert record["additionalProperties"] is False
        assert record["required"] == [name for name in record["properties"] if (kind, name) not in LEFT_OUT_IF_EMPTY]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("status",), "done"),
        (("status",), "running"),
        (("status",), "failed"),
        (("error",), {"message": "why", "rank": 0, "host": "here", "transient": False}),
        (("finished",), None),
        (("schema_version",), 0),
        (("metrics", "accuracy"), "0.9"),
        (("coverage", "seen"), 4.5),
        (("calibration", "ece"), 1.5),
        (("calibration", "bins"), []),
        (("config", "report"), "all"),
        (("config", "initial_peers"), ["/ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity"]),
        (("intervals", "accuracy", "method"), "guess"),
        (("confident_mistakes", 0, "probability"), 2),
    ],
    ids=str,
)
def test_what_contradicts_itself_does_not_fit(complete: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    broken: Any = copy.deepcopy(complete)
    *outer, last = path
    inner = broken
    for name in outer:
        inner = inner[name]
    inner[last] = value
    assert VALIDATOR.is_valid(complete)
    assert not VALIDATOR.is_valid(broken)
