"""What Python itself and the packages in it have to be like."""

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


def has_packages_of_petals() -> bool:
    """Whether transformers is one that Petals 2.2 was made for, of 2023: its models, and its server as it is, need it.

    Such an environment is that of `launch/petals-2.2`.
    """
    from packaging.version import Version

    return Version(_transformers_version()) < Version("4.35")


def require_current_packages() -> None:
    """Checks that transformers is one that runs can use.

    Raises:
        ConfigError: it is one of 2023.
    """
    if has_packages_of_petals():
        raise ConfigError(
            f"transformers {_transformers_version()} is installed, which is for servers with Petals 2.2 and for "
            "programs with Petals' own classes of models: start this command without `--project launch/petals-2.2`."
        )


def _transformers_version() -> str:
    from importlib.metadata import version  # not by `--help`

    return version("transformers")
