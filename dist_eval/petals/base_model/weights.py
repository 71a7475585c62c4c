"""Reads the weights of a model from safetensors in a folder or on a hub; only the needed files are read.

Tensors have the names of transformers' modules, including the renamings that transformers applies to a language model.
Other conversions, such as of experts, are left to transformers. `load_pretrained` loads whole models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dist_eval.errors import CheckpointError, one_line
from dist_eval.process.parsing import read_json

if TYPE_CHECKING:
    from dist_eval.petals.base_model.architecture import Architecture

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class ModelWeights:
    """The tensors of a model in a folder or on a hub, by their names in its base model.

    The name of the token embeddings in files determines the other names. `revision` is a branch, tag or commit on a
    hub, by default its main branch. Raises `CheckpointError` if there are no safetensors for this base model.
    """

    def __init__(self, name: str, architecture: Architecture, revision: str | None = None) -> None:
        self.name, self._revision, self._files = name, revision, weight_map(name, revision)
        self._stored = _stored_names(self._files, architecture.language_model())
        wanted = f"{architecture.embeddings}.weight"
        found = self.find(wanted)
        if found is None:
            raise CheckpointError(f"The weights of {name} lack {wanted!r}.")
        self._prefix = found.removesuffix(wanted)

    def find(self, suffix: str) -> str | None:
        """Returns the shortest tensor name that equals or ends with a path; None if there is none."""
        names = [name for name in self._stored if name == suffix or name.endswith(f".{suffix}")]
        return min(names, key=len, default=None)

    def tensors(self, path: str) -> dict[str, torch.Tensor]:
        """Reads the tensors whose names in the base model begin with a path."""
        found: dict[str, torch.Tensor] = {}
        stored = self._stored_under(path)
        for file in self.files(path):
            tensors = self._open(file)
            for name, key in stored.items():
                if self._files[key] == file:
                    found[name.removeprefix(self._prefix)] = tensors.get_tensor(key)
        return found

    def files(self, path: str) -> list[str]:
        """Returns the names of the files with tensors whose names in the base model begin with a path."""
        return sorted({self._files[key] for key in self._stored_under(path).values()})

    def slice(self, name: str) -> Any:
        """Returns a lazily read tensor (`PySafeSlice` of `safetensors`), given its name from `find`."""
        key = self._stored[name]
        return self._open(self._files[key]).get_slice(key)

    def _stored_under(self, path: str) -> dict[str, str]:
        start = self._prefix + path
        return {name: key for name, key in self._stored.items() if name.startswith(start)}

    def _open(self, file: str) -> Any:
        path = file_of(self.name, file, self._revision)
        if path is None:
            raise CheckpointError(f"The model {self.name} lacks {file}, which its {INDEX_FILE} names.")
        return _open(path)


def _stored_names(stored: Iterable[str], model: Any) -> dict[str, str]:
    """Returns the names of tensors in files by their names in transformers."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [change for change in get_model_conversion_mapping(model) if isinstance(change, WeightRenaming)]
    own = model.state_dict()
    names = dict[str, str]()
    for key in sorted(stored):  # some renamings depend on earlier ones
        renamed, _ = rename_source_key(key, renamings, [])
        names[key if key in own and renamed not in own else renamed] = key
    return names


def require_all_read(unread: Collection[str], what: str) -> None:
    """Raises a `CheckpointError` if transformers ignored some weights."""
    if unread:
        raise CheckpointError(f"{what} has weights that transformers ignores: {sorted(unread)!s:.200}.")


def file_of(name: str, file: str, revision: str | None = None) -> Path | None:
    """Returns the path of a file of a model, downloaded if necessary; None if it does not exist."""
    from transformers.utils.hub import cached_file

    if Path(name).is_dir():
        path = Path(name, file)
        return path if path.is_file() else None
    try:
        found = cached_file(name, file, revision=revision, _raise_exceptions_for_missing_entries=False)
    except Exception as error:  # OSError and errors of the hub's client
        raise CheckpointError(f"{file} of {name} cannot be read: {one_line(error)}") from error
    return Path(found) if found else None


def weight_map(name: str, revision: str | None = None) -> dict[str, str]:
    """Returns the file of each tensor of a model in a folder or on a hub, which must have safetensors."""
    if single := file_of(name, WEIGHTS_FILE, revision):
        return dict.fromkeys(_open(single).keys(), WEIGHTS_FILE)
    index = file_of(name, INDEX_FILE, revision)
    if index is None:
        raise CheckpointError(f"The model {name} has no weights as safetensors, the only format that is read.")
    files = read_index(index)
    if not all(file.endswith(".safetensors") for file in files.values()):
        raise CheckpointError(f"The model {name} has no weights as safetensors, the only format that is read.")
    missing = [file for file in sorted({*files.values()}) if not index.with_name(file).exists()]
    if missing and Path(name).is_dir():
        raise CheckpointError(f"The model {name} lacks {missing[0]}, which its {INDEX_FILE} names.")
    return files


def read_index(index: Path) -> dict[str, str]:
    """Returns the file of each tensor, from an index of weights; rejects files in other folders."""
    try:
        content = read_json(index)
        files = content.get("weight_map") if isinstance(content, dict) else None
        if not (isinstance(files, dict) and files and all(_is_plain(file) for file in files.values())):
            raise ValueError("'weight_map' must map the names of tensors to files in this folder")
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{index} cannot be read: {one_line(error)}") from error
    return files


def _open(path: Path) -> Any:
    from safetensors import safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")  # memory-mapped: unused tensors are not read
    except Exception as error:  # OSError and SafetensorError
        raise CheckpointError(f"{path} is damaged: {one_line(error)}") from error


def _is_plain(file: Any) -> bool:
    return isinstance(file, str) and file == Path(file).name


def load_pretrained(model_class: Any, name: str, *, what: str, headless: str = "", **kwargs: Any) -> Any:
    """Loads a model in float32 and eval mode from a folder or hub; passes `kwargs` to `from_pretrained`.

    `what` is its name in messages, and `headless` says what to do if only weights outside the base model are missing.
    Raises `CheckpointError` if weights are missing, of the wrong shape, or pickled.
    """
    folder = Path(name)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        raise CheckpointError(f"{what} has no weights as safetensors, the only format that is read.")
    try:
        with without_warnings():
            model, info = model_class.from_pretrained(
                name,
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # an error below
                **kwargs,
            )
    except Exception as error:
        raise CheckpointError(
            f"The weights of {what[0].lower() + what[1:]} cannot be loaded (only safetensors are read): "
            f"{one_line(error)}"
        ) from error
    for key, found, wanted in info["mismatched_keys"]:
        raise CheckpointError(f"{what}: {key} has shape {list(found)} in its file, but {list(wanted)} in its config.")
    if missing := sorted(info["missing_keys"]):
        is_headless = not any(key.startswith(f"{model.base_model_prefix}.") for key in missing)
        advice = f" {headless}" if headless and is_headless else ""
        raise CheckpointError(f"{what} lacks weights for {', '.join(missing[:5])}.{advice}")
    return model.eval()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silences warnings of transformers about missing weights, which are expected or raise an error here."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
