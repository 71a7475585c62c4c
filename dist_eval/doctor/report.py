"""Reports findings, as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dist_eval.doctor.facts import Finding, RankFacts
from dist_eval.printable import printable_lines
from dist_eval.process.files import write_atomically

DOCTOR = "doctor.json"
SCHEMA_VERSION = 1
_ORDER, _WIDTH, _NAME_WIDTH = ("error", "warning", "fine"), 118, 14


def has_errors(findings: Sequence[Finding]) -> bool:
    """Returns whether something will make the run fail."""
    return any(finding.level == "error" for finding in findings)


def describe(findings: Sequence[Finding]) -> str:
    """Formats findings for people: errors first, then warnings, then what is ok, then the verdict."""
    lines = []
    for level in _ORDER:
        for finding in (finding for finding in findings if finding.level == level):
            lines += _wrapped(f"{level:<8}{finding.subject:<{_NAME_WIDTH}}", finding.message)
            if finding.advice:
                lines += _wrapped(" " * (8 + _NAME_WIDTH - 3) + "→  ", finding.advice)
    errors, warnings = (sum(finding.level == level for finding in findings) for level in _ORDER[:2])
    verdict = "The run would fail" if errors else "Nothing stands in the way of the run"
    lines.append(f"{verdict}: {_counted(errors, 'error')}, {_counted(warnings, 'warning')}.")
    return printable_lines("\n".join(lines))


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def write_report(
    folder: Path, findings: Sequence[Finding], ranks: Sequence[RankFacts], *, secret: Sequence[str] = ()
) -> Path:
    """Writes `doctor.json`: {schema_version, status: "fine" or "ill", findings, ranks}.

    `findings` has the fields of `Finding`, `ranks` those of `RankFacts` (see `dist_eval.doctor.facts`).

    Args:
        folder: folder of the file.
        findings: the findings.
        ranks: the facts of all ranks.
        secret: addresses that must not be written.

    Returns:
        Path of the file.

    Raises:
        OSError: the file cannot be written.
    """
    content = {
        "schema_version": SCHEMA_VERSION,
        "status": "ill" if has_errors(findings) else "fine",
        "findings": [asdict(finding) for finding in findings],
        "ranks": [asdict(facts) for facts in ranks],
    }
    text = json.dumps(content, indent=2) + "\n"
    for address in secret:
        text = text.replace(address, "(peer, not recorded)")
    path = folder / DOCTOR
    write_atomically(path, text.encode())
    return path
