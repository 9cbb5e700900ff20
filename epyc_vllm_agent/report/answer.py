"""The JSON text of an answer, with its schema version; knows no answer's fields."""

import json
from collections.abc import Mapping
from typing import Any

SCHEMA = 1


def dump(values: Mapping[str, Any]) -> str:
    return json.dumps({"schema": SCHEMA, **values}, indent=2, ensure_ascii=False)
