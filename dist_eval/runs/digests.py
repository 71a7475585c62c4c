"""The digests in `results.json`, which detect damage to it and to the tables beside it.

The digest of the file's own content covers its values, not its bytes, so reformatting the file does not change it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_eval.process.files import file_digest

if TYPE_CHECKING:
    from dist_eval.results.run import RunHeader

NOT_AS_WRITTEN = "was damaged or changed after the run wrote it"


def with_digests(results: RunHeader, folder: Path) -> dict[str, Any]:
    """Returns results as JSON values, with the digests of the tables that exist in the run's folder."""
    from dist_eval.results.run import Digests

    digests = {name: file_digest(folder / name) for name in results.tables}
    files = {name: digest for name, digest in digests.items() if digest is not None}
    content = results.model_copy(update={"digests": Digests(content="", files=files)}).to_json()
    content["digests"]["content"] = _digest(content)
    return content


def is_intact(content: Any) -> bool:
    """Returns whether parsed results are those that were written."""
    digests = content.get("digests") if isinstance(content, dict) else None
    return isinstance(digests, dict) and digests.get("content") == _digest(content)


def damaged_table(results: RunHeader, folder: Path) -> str | None:
    """Returns the name of a table that is missing or was changed after the run wrote it; None if there is none."""
    for name in results.tables:
        digest = results.digests.files.get(name)
        if digest is None or digest != file_digest(folder / name):
            return name
    return None


def _digest(content: dict[str, Any]) -> str:
    """Returns the SHA-256 of JSON values, with the digest itself left empty, as hexadecimal digits."""
    blank = {**content, "digests": {**content["digests"], "content": ""}}
    text = json.dumps(blank, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
