"""The findings of checks: collected on each rank, merged for all ranks, printed and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dist_eval.printable import printable_lines
from dist_eval.process.files import write_atomically
from dist_eval.runs.files import CHECKS
from dist_eval.tables import format_count

SCHEMA_VERSION = 3
_LEVELS = ("error", "warning", "fine")
_DIGITS_SHOWN = 12

Level = Literal["error", "warning", "fine"]


class Fault(Exception):
    """Raised by a check: a message, and advice."""

    def __init__(self, message: str, advice: str = "", level: Level = "error") -> None:
        super().__init__(message)
        self.advice, self.level = advice, level


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    level: Level  # "error" if the run will fail or not be the intended one; "warning", or "fine"
    subject: str  # the subject, one or two words
    message: str  # the finding
    advice: str = ""  # what to do about it; empty if nothing
    equal: dict[str, str] = field(default_factory=dict)  # by name, values that must be equal on all ranks, like hashes


@dataclass
class Report:
    """The findings of one rank, one for each subject."""

    rank: int
    host: str
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Reads the JSON of the fields."""
        content = json.loads(text)
        return cls(**{**content, "findings": [Finding(**finding) for finding in content["findings"]]})

    @property
    def place(self) -> str:
        """Rank and host, for messages."""
        return f"rank {self.rank} on {self.host}"


def conclude(reports: Sequence[Report]) -> list[Finding]:
    """Merges the findings of ranks: each fault once, with the ranks that have it, then the successful checks."""
    concluded: list[Finding] = []
    for subject in dict.fromkeys(finding.subject for report in reports for finding in report.findings):
        found = [(report, finding) for report in reports for finding in report.findings if finding.subject == subject]
        faults: dict[tuple[Level, str, str], list[Report]] = {}
        for report, finding in found:
            if finding.level != "fine":
                faults.setdefault((finding.level, finding.message, finding.advice), []).append(report)
        for (level, message, advice), having in faults.items():
            others = f" and {len(having) - 1} more" if len(having) > 1 else ""
            where = f"At {having[0].place}{others}: " if len(having) < len(found) else ""
            concluded.append(Finding(level, subject, where + message, advice))
        differing = _differences(found)
        if differing:
            message = f"Ranks differ in {differing}: a prediction would depend on the rank that computes it."
            advice = "Give all hosts the same environment and files, preferably in a shared folder."
            concluded.append(Finding("error", subject, message, advice))
        elif not faults:
            concluded.append(replace(found[0][1], equal={}))
    return sorted(concluded, key=lambda finding: _LEVELS.index(finding.level))


def _differences(found: Sequence[tuple[Report, Finding]]) -> str:
    """Says which values differ between ranks; empty if none do."""
    differing = []
    for name in dict.fromkeys(name for _, finding in found for name in finding.equal):
        places: dict[str, str] = {}
        for report, finding in found:
            if name in finding.equal:
                places.setdefault(finding.equal[name], report.place)
        if len(places) > 1:
            values = [f"{value[:_DIGITS_SHOWN]} at {place}" for value, place in places.items()]
            differing.append(f"{name} ({', '.join(values)})")
    return "; ".join(differing)


def has_errors(findings: Sequence[Finding]) -> bool:
    """Returns whether the run would fail."""
    return any(finding.level == "error" for finding in findings)


def describe(findings: Sequence[Finding]) -> str:
    """Formats findings for people, one per line, and the verdict."""
    lines = []
    for finding in findings:
        advice = f" → {finding.advice}" if finding.advice else ""
        lines.append(f"{finding.level:<8}{finding.subject:<14}{finding.message}{advice}")
    errors, warnings = (sum(finding.level == level for finding in findings) for level in _LEVELS[:2])
    verdict = "The run would fail" if errors else "The run can start"
    lines.append(f"{verdict}: {format_count(errors, 'error')}, {format_count(warnings, 'warning')}.")
    return printable_lines("\n".join(lines))


def write_report(folder: Path, findings: Sequence[Finding], reports: Sequence[Report], secret: Sequence[str]) -> Path:
    """Writes `doctor.json`, without secret addresses: {schema_version, status: "fine" or "failed", findings, ranks}."""
    content: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "status": "failed" if has_errors(findings) else "fine",
        "findings": [asdict(finding) for finding in findings],
        "ranks": [asdict(report) for report in reports],
    }
    text = json.dumps(content, indent=2) + "\n"
    for address in secret:
        text = text.replace(address, "(peer, not recorded)")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / CHECKS
    write_atomically(path, text.encode())
    return path
