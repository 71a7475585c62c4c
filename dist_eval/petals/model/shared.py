"""Parts that copies of a model share, and that cannot be pickled."""

from __future__ import annotations

from typing import Any, TypeVar

from dist_eval.errors import ConfigError

Self = TypeVar("Self", bound="Shared")


class Shared:
    """A part of a model that belongs to its connection."""

    def __deepcopy__(self: Self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise ConfigError(
            "A model on a swarm cannot be pickled, because its connection cannot: save its tuned tensors with "
            "save_pretrained, and open it with checkpoint=FOLDER elsewhere."
        )
