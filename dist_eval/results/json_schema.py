"""How a JSON Schema is made from records."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue


class SchemaGenerator(GenerateJsonSchema):
    """Leaves out titles, which would repeat the names, and writes `X | None` as one type where it can."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Returns whether a field gets a title: none does."""
        return False

    def nullable_schema(self, schema: Any) -> JsonSchemaValue:
        """Returns the schema of `X | None`."""
        found = super().nullable_schema(schema)
        inner = found.get("anyOf", [{}])[0]
        if not isinstance(inner.get("type"), str):
            return found
        choices = {"enum": [*inner["enum"], None]} if "enum" in inner else {}
        return {**inner, **choices, "type": [inner["type"], "null"]}
