"""Revisions of models and datasets on a hub, resolved once to commits for all later reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from dist_eval.errors import CheckpointError, DataError, one_line

HubKind = Literal["model", "dataset"]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 30.0
_commits: dict[tuple[HubKind, str], str] = {}


def pin(kind: HubKind, name: str, commit: str) -> None:
    """Sets the commit that this process reads a model or dataset from."""
    _commits[kind, name] = commit


def pinned(kind: HubKind, name: str) -> str | None:
    """Returns the commit to read a model or dataset from; None for the newest, and for a folder."""
    return _commits.get((kind, name))


def resolve_commit(kind: HubKind, name: str, revision: str) -> str:
    """Returns the commit of a revision (branch, tag or commit), from the hub or, offline, from its local cache.

    The token is that of the hub's client: HF_TOKEN, or the file that a login wrote.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.file_download import repo_folder_name

    if _COMMIT.fullmatch(revision):
        return revision
    failed = DataError if kind == "dataset" else CheckpointError
    try:
        return str(HfApi().repo_info(name, revision=revision, repo_type=kind, timeout=_SECONDS).sha)
    except RevisionNotFoundError as error:
        raise failed(f"The {kind} {name} has no revision {revision} on its hub.") from error
    except RepositoryNotFoundError as error:  # private repositories look nonexistent to others
        raise failed(
            f"The {kind} {name} does not exist on its hub, or is private or gated: log in with `hf auth login`, or set "
            "HF_TOKEN to a token with read access."
        ) from error
    except Exception as error:  # no connection, or offline mode
        cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=kind))
        found = cache / "refs" / revision
        if found.is_file():
            return found.read_text(encoding="utf-8").strip()
        raise failed(
            f"The commit of the revision {revision} of the {kind} {name} is unknown to its hub ({one_line(error)}) and "
            f"to {cache}. Name the commit itself, with 40 digits."
        ) from error
