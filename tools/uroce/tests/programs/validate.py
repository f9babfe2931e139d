"""Validates objects against the schemas of docs/schemas: `validate.py FOLDER < LINES`. Each line is an object, whose field
`schema` names its schema. A field that its schema does not have is an error here, though readers are to ignore it."""

import json
import pathlib
import sys

import jsonschema


def strict(schema):
    """The schema without room for other fields."""
    if isinstance(schema, dict):
        schema = {key: strict(value) for key, value in schema.items()}
        if isinstance(schema.get("properties"), dict) and "type" in schema:
            schema.setdefault("additionalProperties", False)
    elif isinstance(schema, list):
        schema = [strict(item) for item in schema]
    return schema


folder = pathlib.Path(sys.argv[1])
validators = {}
for file in sorted(folder.glob("*.json")):
    schema = json.loads(file.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    name = schema["properties"]["schema"]["const"]
    assert name == f"uroce.{file.stem}/1", f"{file} is called {name}"
    validators[name] = jsonschema.Draft202012Validator(strict(schema))

seen = {}
for line in sys.stdin:
    value = json.loads(line)
    name = value.get("schema")
    if name not in validators:
        sys.exit(f"no schema {name}: {line}")
    for error in validators[name].iter_errors(value):
        sys.exit(f"{name}: {error.message}, at {list(error.absolute_path)}: {line}")
    seen[name] = seen.get(name, 0) + 1
print(json.dumps({"known": sorted(validators), "seen": seen}))
