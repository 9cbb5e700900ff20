"""Frozen dataclasses to plain JSON values and back; knows types, not what they stand for.

Both directions follow the annotations, so a stored file that does not fit its type is found on
reading (ValueError) and not where it is used.
"""

import dataclasses
import functools
import types
import typing
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
_SCALARS = {str, int, float, bool, type(None)}


def to_plain(value: Any) -> Any:
    """A value of dataclasses, tuples, sets, enums and scalars as dicts, lists and scalars."""
    if type(value) in _SCALARS:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], plain: Any) -> T:
    """The value of type `kind` that `to_plain` turned into `plain`.

    Raises ValueError where a field is missing or of another type; unknown fields are ignored, so
    that an older agent can read what a newer one wrote.
    """
    return typing.cast("T", _read(kind, plain, kind.__name__))


def _read(kind: Any, plain: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _read_union(arguments, plain, where)
    if origin in (tuple, frozenset):
        return origin(_read_items(arguments, plain, where))
    if origin is dict:
        return {str(k): _read(arguments[1], v, f"{where}.{k}") for k, v in _mapping(plain, where)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_dataclass(kind, plain, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if type(plain) is not kind:
        raise ValueError(f"{where} is {type(plain).__name__}, not {kind.__name__}")
    return plain


def _read_union(arguments: tuple[Any, ...], plain: Any, where: str) -> Any:
    if plain is None and type(None) in arguments:
        return None
    options = [option for option in arguments if option is not type(None)]
    for option in options[:-1]:
        try:
            return _read(option, plain, where)
        except ValueError:
            continue
    return _read(options[-1], plain, where)


def _read_items(arguments: tuple[Any, ...], plain: Any, where: str) -> list[Any]:
    if not isinstance(plain, list):
        raise ValueError(f"{where} is not a list")
    if len(arguments) == 1 or arguments[-1] is Ellipsis:
        return [_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(plain)]
    if len(arguments) != len(plain):
        raise ValueError(f"{where} has {len(plain)} items, not {len(arguments)}")
    return [_read(k, item, where) for k, item in zip(arguments, plain, strict=True)]


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read_dataclass(kind: type, plain: Any, where: str) -> Any:
    hints = _hints(kind)
    values = dict(_mapping(plain, where))
    arguments = {}
    for field in dataclasses.fields(kind):
        if field.name in values:
            arguments[field.name] = _read(
                hints[field.name], values[field.name], f"{where}.{field.name}"
            )
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error


def _mapping(plain: Any, where: str) -> typing.ItemsView[str, Any]:
    if not isinstance(plain, dict):
        raise ValueError(f"{where} is not a table")
    return plain.items()
