"""`dist-eval schema`: prints the JSON Schema of `results.json` (draft 2020-12).

It follows from the records of `dist_eval.results` and forbids additional properties.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import Options
from dist_eval.process.programs import COMPLETE, run_program

if TYPE_CHECKING:
    from dist_eval.options.config import RunConfig

SCHEMA_VERSION: Literal[2] = 2
"""Version of `results.json`, incremented by every incompatible change."""


def results_schema() -> dict[str, Any]:
    """Returns the schema, for a JSON Schema validator.

    Examples:
        >>> schema = results_schema()
        >>> list(schema["discriminator"]["mapping"])
        ['complete', 'failed', 'incomplete', 'running']
        >>> schema["$defs"]["CompleteRun"]["properties"]["schema_version"]["const"] == SCHEMA_VERSION
        True
    """
    from dist_eval.options.config import EvaluationConfig
    from dist_eval.options.harness import HarnessConfig
    from dist_eval.results.run import RUN

    schema = RUN.json_schema(mode="serialization")
    definitions = schema["$defs"]
    definitions["Config"] = _config_schema(EvaluationConfig)
    definitions["HarnessConfig"] = _config_schema(HarnessConfig)
    configs = [{"$ref": f"#/$defs/{name}"} for name in ("Config", "HarnessConfig")]
    of_complete = {"CompleteRun": configs[0]}
    for name, record in definitions.items():
        if "config" in record["properties"]:
            known = of_complete.get(name, {"anyOf": configs})
            record["properties"]["config"] = {**known, "description": "All options."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"results.json of dist_eval, schema version {SCHEMA_VERSION}",
        "description": "Written first with status running, and replaced atomically after every change, so the file is "
        "always complete and true.",
        **schema,
    }


def _config_schema(config: type[RunConfig]) -> dict[str, Any]:
    """Returns the schema of the section `config`: all options of a kind of run."""
    from pydantic import Field, create_model

    from dist_eval.record import Record

    hints = get_type_hints(config)
    options: dict[str, Any] = {
        option.name: (hints[option.name], Field(description=option.metadata["help"])) for option in fields(config)
    }
    options["initial_peers"] = str, Field(description="number of addresses, which are not recorded")
    described = "All options, as in dist_eval/options and in --help."
    model = create_model("Config", __base__=Record, __doc__=described, **options)
    return model.model_json_schema()


COMMAND = Command(
    program="dist-eval schema", config=Options, description="Prints the JSON Schema of results.json (draft 2020-12)."
)
"""The command `dist-eval schema`."""


def show(options: Options) -> int:
    """Prints the schema."""
    print(json.dumps(results_schema(), indent=2))
    return COMPLETE


if __name__ == "__main__":
    run_program(lambda: run_command(COMMAND, show))
