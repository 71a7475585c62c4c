"""What Python itself has to be like."""

from __future__ import annotations

import sys

from dist_eval.errors import ConfigError


def require_docstrings() -> None:
    """Checks that Python keeps docstrings: transformers and Petals edit theirs when they are imported.

    Raises:
        ConfigError: it was told to remove them.
    """
    if sys.flags.optimize > 1:
        raise ConfigError(
            "Python removes all docstrings (PYTHONOPTIMIZE=2, or -OO), and without them transformers cannot be "
            "imported. Unset PYTHONOPTIMIZE, or set it to 1."
        )
