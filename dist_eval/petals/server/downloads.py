"""Downloads the files of a hub's model that contain a server's blocks, with the hub's own client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dist_eval.errors import CheckpointError, ConfigError, one_line
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.base_model.weights import INDEX_FILE, ModelWeights
from dist_eval.petals.server.block_memory import format_memory
from dist_eval.tables import format_count


def download_blocks(
    model: str, revision: str | None, blocks: Collection[int], say: Callable[[str], None] = print
) -> str | None:
    """Downloads the files with some blocks of a model, several at a time, with a progress bar on a terminal.

    Files in the hub's cache are kept, also those of an interrupted download. `revision` is a branch, tag or commit, by
    default the main branch. If anything is missing, `say` is called with a line about the size of the download. Returns
    the commit, by which servers find the files without asking the hub; None for a folder.
    """
    if Path(model).exists():
        if revision:
            raise ConfigError(f"--revision {revision} applies only to models on a hub, but {model} is a folder.")
        return None
    commit = Path(_snapshot(model, revision, ["config.json", INDEX_FILE])).name
    architecture = Architecture(read_base_config(model, commit), model)
    weights = ModelWeights(model, architecture, commit)
    paths = [f"{architecture.layers}.{index}." for index in blocks]
    if 0 in blocks:  # this server embeds token ids
        paths += [f"{path}." for path in (architecture.embeddings, *architecture.input_norms)]
    files = sorted({file for path in paths for file in weights.files(path)})
    missing = [file for file in _snapshot(model, commit, files, dry_run=True) if file.will_download]
    if missing:
        size = format_memory(sum(file.file_size for file in missing))
        say(f"downloading {format_count(len(missing), 'file')} of {model} ({commit[:12]}), {size}")
    folder = Path(_snapshot(model, commit, files, shown=sys.stderr.isatty()))
    if absent := [file for file in files if not (folder / file).exists()]:
        raise CheckpointError(f"The model {model} lacks {absent[0]}, which its {INDEX_FILE} names.")
    return commit


def _snapshot(model: str, revision: str | None, files: list[str], *, shown: bool = False, dry_run: bool = False) -> Any:
    """Returns the folder of a model's files, downloading missing ones; with `dry_run`, what would be downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hide = not shown and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        return snapshot_download(model, revision=revision, allow_patterns=files, dry_run=dry_run)
    except Exception as error:  # OSError, ValueError, and errors of the hub's client
        raise CheckpointError(f"The model {model} cannot be downloaded: {one_line(error)}") from error
    finally:
        if hide:
            enable_progress_bars()
