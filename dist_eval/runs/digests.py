"""The digests in `results.json`, by which damage to it, and to the tables beside it, is found before they are believed.

The digest of the file's own content is that of its values, not of its bytes: whoever only formats it anew changes
nothing. Files of earlier versions have no digests, and are read unchecked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_eval.process.files import file_digest

if TYPE_CHECKING:
    from dist_eval.results.run import RunHeader

NOT_AS_WRITTEN = "is not as the run wrote it: it was damaged, or changed by hand"


def with_digests(results: RunHeader, folder: Path, tables: Iterable[str]) -> dict[str, Any]:
    """Returns results as JSON values, with the digests of the tables that exist in the run's folder.

    Raises:
        OSError: a table cannot be read.
        TypeError: the results are no JSON.
    """
    from dist_eval.results.run import Digests

    files = {name: file_digest(folder / name) for name in tables if (folder / name).exists()}
    content = results.model_copy(update={"digests": Digests(content="", files=files)}).to_json()
    content["digests"]["content"] = _digest(content)
    return content


def is_intact(content: Any) -> bool:
    """Returns whether parsed results are those that were written, as far as they have a digest."""
    digests = content.get("digests") if isinstance(content, dict) else None
    return digests is None or (isinstance(digests, dict) and digests.get("content") == _digest(content))


def damaged_table(results: RunHeader, folder: Path) -> str | None:
    """Returns the name of a table that is not what the run wrote; None if all that exist are.

    Raises:
        OSError: a table cannot be read.
    """
    for name, digest in results.digests.files.items() if results.digests else ():
        path = folder / name
        if path.exists() and file_digest(path) != digest:
            return name
    return None


def _digest(content: dict[str, Any]) -> str:
    """Returns the SHA-256 of JSON values in which the digest itself is left empty, as hexadecimal digits."""
    blank = {**content, "digests": {**content["digests"], "content": ""}}
    text = json.dumps(blank, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
