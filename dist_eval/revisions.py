"""Revisions of models and datasets on a hub: resolved to commits once, of which all is read that follows."""

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
    """Sets the commit of which this process reads a model or dataset from now on."""
    _commits[kind, name] = commit


def pinned(kind: HubKind, name: str) -> str | None:
    """Returns the commit of which a model or dataset is to be read; None for the newest one, and for a folder."""
    return _commits.get((kind, name))


def resolve_commit(kind: HubKind, name: str, revision: str) -> str:
    """Asks the hub, or without a connection its local cache, for the commit that a revision stands for.

    A token is taken from where the hub's client takes it: HF_TOKEN, or the file that a login has written.

    Args:
        kind: what it is of.
        name: hub name of the model or dataset.
        revision: branch, tag or commit.

    Raises:
        CheckpointError: there is no such model or revision, or it is not known which commit it is.
        DataError: the same of a dataset.
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
    except RepositoryNotFoundError as error:  # one that is private looks to others as if it did not exist
        raise failed(
            f"There is no {kind} {name} on its hub, or it is private or gated: log in with `hf auth login`, or set "
            "HF_TOKEN to a token that may read it."
        ) from error
    except Exception as error:  # no connection, or none is to be made
        cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=kind))
        found = cache / "refs" / revision
        if found.is_file():
            return found.read_text(encoding="utf-8").strip()
        raise failed(
            f"Which commit the revision {revision} of the {kind} {name} is, neither its hub says ({one_line(error)}) "
            f"nor {cache}. Name the commit itself, of 40 digits."
        ) from error
