"""The part of JSON Schema that data/*.schema.json use: faults of a value, each with its place.

https://json-schema.org/draft/2020-12 . A keyword that is not known here is a fault of the schema:
it would hold nothing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("$schema", "title", "description", "type", "properties", "required"),
    *("additionalProperties", "items", "enum", "const", "pattern", "minimum", "minLength"),
    *("anyOf", "default", "maximum", "minItems", "patternProperties", "uniqueItems"),
}


def faults(value: Any, schema: Mapping[str, Any], where: str = "$") -> Iterator[str]:
    unknown = set(schema) - _KNOWN
    if unknown:
        yield f"{where}: schema keywords {sorted(unknown)} are not known"
    if "type" in schema and not _is_of(value, schema["type"]):
        yield f"{where}: {value!r} is not {schema['type']}"
        return
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{where}: {value!r} is not {schema['const']!r}"
    options = schema.get("anyOf")
    if options and all(any(faults(value, option, where)) for option in options):
        yield f"{where}: {value!r} is none of {options}"
    if isinstance(value, str):
        yield from _text(value, schema, where)
    elif isinstance(value, dict):
        yield from _object(value, schema, where)
    elif isinstance(value, list):
        yield from _array(value, schema, where)
    elif isinstance(value, (int, float)):
        if value < schema.get("minimum", value):
            yield f"{where}: {value} is below {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{where}: {value} is above {schema['maximum']}"


def _is_of(value: Any, kinds: str | list[str]) -> bool:
    names = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _same(value: Any, option: Any) -> bool:
    return type(value) is type(option) and bool(value == option)


def _array(value: list[Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{where}: has fewer than {schema['minItems']} items"
    if schema.get("uniqueItems") and any(item in value[:n] for n, item in enumerate(value)):
        yield f"{where}: has an item twice"
    for index, item in enumerate(value):
        yield from faults(item, schema.get("items", {}), f"{where}[{index}]")


def _text(value: str, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if len(value) < schema.get("minLength", 0):
        yield f"{where}: {value!r} is too short"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r} does not match {schema['pattern']}"


def _object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}: {name} is missing"
    patterns = schema.get("patternProperties", {})
    for name, item in value.items():
        kinds = [kind for pattern, kind in patterns.items() if re.search(pattern, name)]
        kinds += [properties[name]] if name in properties else []
        for kind in kinds:
            yield from faults(item, kind, f"{where}.{name}")
        if not kinds and schema.get("additionalProperties") is False:
            yield f"{where}: {name} is not known"
