"""The base class of all records, and their common types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A part of a JSON file: immutable, without keys besides its fields, and without NaN or infinity.

    The order of the fields is the order of the keys in the file. A field's docstring is its description in the schema.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        return self.model_dump()


Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = int | float
"""A number that is written unchanged: an integer does not become a float."""

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""ISO 8601, in UTC."""

MetricValues = dict[str, float | None]
"""Metric by name, null where undefined."""

Reasons = dict[str, Annotated[str, Field(min_length=1)]]
"""The reason for each metric that is null."""
