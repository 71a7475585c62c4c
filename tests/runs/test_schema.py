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
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import results_of
from samples import FACTS, PREDICTIONS, config_for, folder_of, sections

from dist_eval.options.config import EvaluationConfig
from dist_eval.schema import SCHEMA_VERSION, results_schema

VALIDATOR = jsonschema.Draft202012Validator(results_schema())


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, Any]:
    run = folder_of(config_for(tmp_path))
    run.open()
    run.complete(PREDICTIONS, sections())
    return results_of(tmp_path)


def test_it_is_a_schema_of_the_version_that_is_written() -> None:
    jsonschema.Draft202012Validator.check_schema(results_schema())
    for record in ("RunningRun", "EndedRun", "CompleteRun"):
        assert results_schema()["$defs"][record]["properties"]["schema_version"]["const"] == SCHEMA_VERSION


JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema_of(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    """What the schema has to say of an option."""
    several = isinstance(hint, types.UnionType)
    scalar = next(part for part in typing.get_args(hint) if part is not type(None)) if several else hint
    choices = field.metadata["extra"].get("choices")
    if choices:
        return {"enum": [*choices, None]} if several else {"enum": [*choices], "type": "string"}
    if typing.get_origin(scalar) is list:
        return {"type": "array", "items": {"type": "string"}}
    return {"type": [JSON_TYPES[scalar], "null"] if several else JSON_TYPES[scalar]}


def test_it_knows_every_option() -> None:
    hints = typing.get_type_hints(EvaluationConfig)
    expected = {one.name: schema_of(one, hints[one.name]) for one in dataclasses.fields(EvaluationConfig)}
    for one in dataclasses.fields(EvaluationConfig):
        expected[one.name]["description"] = one.metadata["help"]
    expected["initial_peers"] = {"type": "string", "description": "how many addresses, which are not recorded"}
    known = results_schema()["$defs"]["Config"]
    assert known["properties"] == expected
    assert known["required"] == list(expected)


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


def objects_in(value: Any) -> list[dict[str, Any]]:
    """All objects whose names the schema knows; those of figures have names of their own."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [value] if isinstance(value, dict) else []
    return found + [one for part in inner for one in objects_in(part)]


def test_nothing_can_be_added_or_left_out(complete: dict[str, Any]) -> None:
    free = [complete["environment"]["packages"], complete["data"]["column_digests"], complete["digests"]["files"]]
    free += [complete[name] for name in ("metrics", "undefined", "intervals")]
    free += [part[name] for part in complete["slices"] for name in ("metrics", "undefined", "intervals")]
    count = 0
    for number, original in enumerate(objects_in(complete)):
        if any(original is one for one in free):
            continue
        for change in (lambda one: one.update(surplus=1), *map(without, original)):
            broken = copy.deepcopy(complete)
            change(objects_in(broken)[number])
            assert not VALIDATOR.is_valid(broken), (original, change)
            count += 1
    assert count > 300


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda one: one.pop(name)


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
        (("problem_type",), "regression"),
        (("coverage", "seen"), 4.5),
        (("calibration", "ece"), 1.5),
        (("calibration", "bins"), []),
        (("config", "report"), "all"),
        (("config", "initial_peers"), ["/ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity"]),
        (("intervals", "accuracy", "low"), None),
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
