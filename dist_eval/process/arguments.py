"""The parser of every command line here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any


class ArgumentParser(argparse.ArgumentParser):
    """Accepts options with underscores, too: `--num_fewshot` like `--num-fewshot`."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = [self._with_dashes(word) for word in (sys.argv[1:] if args is None else args)]
        for word in words:
            if (
                word.endswith("=--") and word[:-3] in self._option_string_actions
            ):  # Python 3.12 and older drop the value
                self.error(f"{word}: a value -- cannot be given on a command line")
        return super().parse_known_args(words, namespace)

    def _with_dashes(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        return dashed + equals + value if dashed in self._option_string_actions else word
