"""The inputs that a run's results depend on; they decide whether a run may resume an earlier one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from dist_eval.process.files import write_atomically
from dist_eval.process.parsing import read_json
from dist_eval.runs.files import FINGERPRINT, JOURNAL

_DERIVED = ("token ids", "plan")  # change only if another value does, or if dist_eval itself has changed

# With --generate, a dataset is hashed as whole prompts, so its hash follows from these
_OF_PROMPTS = ("--prompt", "few-shot examples")

_SELECTION, _ALL_ROWS = "selection of rows", "texts of all rows"  # only in runs on a part of the rows
DRAWS = "draws of texts"
_OF_SELECTED_ROWS = ("dataset", "references", DRAWS)

TASK_DEFINITION, TASK_CODE = "definition of the tasks", "code of the tasks"
_OF_SCORES = (TASK_DEFINITION, TASK_CODE)  # the answers depend on the requests alone, which are hashed as tokens

_PARTS, _DIGEST = "parts", "digest"
_NAMED_AT_MOST = 5


class Fingerprint:
    """The inputs that a run's results depend on: a hash by name. Only runs with equal fingerprints share a journal.

    `values` has a text by name; the names appear in error messages. `parts` has, by the value's name, the hashes of the
    parts of a value, such as each file of a dataset or each column that a prompt names. Only messages use them: equal
    values with other parts, such as the same rows in renamed files, are the same run.
    """

    def __init__(self, values: Mapping[str, str], parts: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.values = dict(values)
        self.parts = {name: dict(of_value) for name, of_value in (parts or {}).items() if of_value}

    @classmethod
    def load(cls, folder: Path) -> Fingerprint | None:
        """Reads the fingerprint in a run's folder; None if it is missing or damaged."""
        try:
            values = read_json(folder / JOURNAL / FINGERPRINT)
            parts, digest = values.pop(_PARTS, None), values.pop(_DIGEST)
            fingerprint = cls(values, parts)
            return fingerprint if digest == fingerprint.digest() else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def digest(self) -> str:
        """Returns a hash of all values, as hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()

    def joined(self, other: Fingerprint) -> Fingerprint:
        """Returns a fingerprint with the values of both."""
        return Fingerprint({**self.values, **other.values}, {**self.parts, **other.parts})

    def with_plan(self, plan: str) -> Fingerprint:
        """Returns this fingerprint with the digest of another plan."""
        return Fingerprint({**self.values, "plan": plan})

    def save(self, folder: Path) -> None:
        (folder / JOURNAL).mkdir(parents=True, exist_ok=True)
        parts = {_PARTS: self.parts} if self.parts else {}
        content = {**self.values, **parts, _DIGEST: self.digest()}
        write_atomically(folder / JOURNAL / FINGERPRINT, (json.dumps(content, indent=2) + "\n").encode())

    def scores_otherwise(self, earlier: Fingerprint) -> bool:
        """Returns whether an earlier run has the same answers, but scored by another definition or code of tasks."""
        changed = self._changed_values(earlier)
        return bool(changed) and all(name in _OF_SCORES for name in changed)

    def changed(self, earlier: Fingerprint) -> list[str]:
        """Returns the names whose values differ from an earlier run's, with the differing parts if they are known.

        Names that follow from others are returned only if no other value differs, or if one of their parts does.
        """
        changed = self._changed_values(earlier)
        causes = [name for name in changed if not self._follows(name, changed, earlier)]
        if changed and not causes:
            causes = [name for name in self.parts if self._with_parts(name, earlier) != name]
        return [self._with_parts(name, earlier) for name in causes] or changed

    def _changed_values(self, earlier: Fingerprint) -> list[str]:
        """Returns the names of values that differ; earlier versions did not hash the code of tasks."""
        differing = _differing(self.values, earlier.values)
        return [name for name in differing if name != TASK_CODE or name in earlier.values]

    def _follows(self, name: str, changed: Sequence[str], earlier: Fingerprint) -> bool:
        """Returns whether a value may have changed only because another one did."""
        if name in _DERIVED:
            return True
        if _SELECTION in changed:
            is_new = name not in self.values or name not in earlier.values
            return name in _OF_SELECTED_ROWS or (name == _ALL_ROWS and is_new)
        if name != "dataset" or not any(cause in changed for cause in _OF_PROMPTS):
            return False
        now, before = self.parts.get(name, {}), earlier.parts.get(name, {})
        return all(now[part] == before[part] for part in now.keys() & before.keys())

    def _with_parts(self, name: str, earlier: Fingerprint) -> str:
        now, before = self.parts.get(name, {}), earlier.parts.get(name, {})
        if not now or not before:
            return name
        found = [
            f"{part} {'is new' if part not in before else 'is missing' if part not in now else 'has changed'}"
            for part in _differing(before, now)
        ]
        more = [f"{len(found) - _NAMED_AT_MOST} more"] if len(found) > _NAMED_AT_MOST else []
        return f"{name} ({', '.join(found[:_NAMED_AT_MOST] + more)})" if found else name


def _differing(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    """Returns the keys whose values differ, or that only one mapping has."""
    return [key for key in {**now, **before} if now.get(key) != before.get(key)]
