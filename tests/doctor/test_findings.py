"""What ranks found is brought together: each fault once with its place, differences, and one line a check."""

from __future__ import annotations

import json
from dataclasses import asdict

from dist_eval.doctor.findings import Finding, Report, conclude, describe, has_errors


def reports(*findings: list[Finding]) -> list[Report]:
    return [Report(rank, f"host-{rank // 2}", found) for rank, found in enumerate(findings)]


def fine(message: str = "as it should be", **equal: str) -> Finding:
    return Finding("fine", "dataset", message, equal=equal)


def error(message: str = "There is no file x.csv.") -> Finding:
    return Finding("error", "dataset", message, "Give another path.")


def test_what_is_fine_on_all_ranks_is_one_line() -> None:
    found = conclude(reports([fine("rows.csv can be read")], [fine()], [fine()]))
    assert describe(found).splitlines() == [
        "fine    dataset       rows.csv can be read",
        "The run can start: 0 errors, 0 warnings.",
    ]


def test_a_fault_is_said_once_with_its_place_and_what_to_do() -> None:
    found = conclude(reports([fine()], [error()], [error()], [error("It is empty.")]))
    assert [(one.level, one.message) for one in found] == [
        ("error", "At rank 1 on host-0 and 1 more: There is no file x.csv."),
        ("error", "At rank 3 on host-1: It is empty."),
    ]
    assert has_errors(found)
    assert "There is no file x.csv. → Give another path.\n" in describe(found)
    assert describe(found).endswith("The run would fail: 2 errors, 0 warnings.")


def test_a_fault_of_all_ranks_that_looked_has_no_place() -> None:
    found = conclude(reports([error()], [], [error()], []))
    assert [one.message for one in found] == ["There is no file x.csv."]


def test_errors_come_first() -> None:
    space = [Finding("fine", "space", "enough"), Finding("warning", "swarm", "Servers differ."), error()]
    assert [one.subject for one in conclude(reports(space))] == ["dataset", "swarm", "space"]


def test_values_that_differ_between_ranks_are_an_error() -> None:
    found = conclude(reports([fine(torch="2.15.0", numpy="2")], [], [fine(torch="2.14.0", numpy="2")]))
    assert [one.level for one in found] == ["error"]
    assert "torch (2.15.0 at rank 0 on host-0, 2.14.0 at rank 2 on host-1)" in found[0].message
    assert "numpy" not in found[0].message


def test_a_report_survives_json() -> None:
    report = Report(3, "host", [fine(torch="2"), error()])
    assert Report.from_json(json.dumps(asdict(report))) == report
