"""The options that select some rows of a dataset."""

from __future__ import annotations

from dataclasses import dataclass

from dist_eval.errors import ConfigError
from dist_eval.options.groups import Options, flag, option

_SIZES = ("limit", "sample", "precision")


@dataclass(kw_only=True)
class SelectionOptions(Options):
    """Which rows of the dataset are evaluated, if not all of them."""

    limit: int | None = option(None, "evaluate only the first rows", group="data", metavar="ROWS", least=1)
    sample: int | None = option(
        None,
        "evaluate only a random sample of the rows, drawn without replacement",
        group="data",
        metavar="ROWS",
        least=1,
    )
    precision: float | None = option(
        None,
        "evaluate a random sample just large enough for intervals of at most this half width, whatever the share of "
        "right answers, such as 0.01 for one percentage point",
        group="data",
        metavar="FRACTION",
    )
    sample_seed: int = option(0, "seed of the random sample", group="data", metavar="SEED", least=0)
    stratify: bool = option(False, "draw from each class as large a share of the sample as of all rows", group="data")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [flag(name) for name in _SIZES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} contradict each other: give one of them.")
        if self.precision is not None and not 0 < self.precision < 0.5:
            raise ConfigError(
                f"--precision must be more than 0 and less than 0.5, such as 0.01 for one percentage point, not "
                f"{self.precision}."
            )
        if (self.sample_seed or self.stratify) and self.sample is None and self.precision is None:
            name = "--stratify" if self.stratify else "--sample-seed"
            raise ConfigError(f"{name} belongs to --sample or --precision, and neither is given.")
