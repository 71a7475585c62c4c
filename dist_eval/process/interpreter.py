"""Requirements of the Python interpreter."""

from __future__ import annotations

import sys

from dist_eval.errors import ConfigError


def require_docstrings() -> None:
    """Checks that Python keeps docstrings, which transformers and Petals edit when they are imported.

    Raises:
        ConfigError: Python removes them.
    """
    if sys.flags.optimize > 1:
        raise ConfigError(
            "Python removes all docstrings (PYTHONOPTIMIZE=2, or -OO), and without them transformers cannot be "
            "imported. Unset PYTHONOPTIMIZE, or set it to 1."
        )
