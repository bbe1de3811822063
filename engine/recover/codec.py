"""Plain values of recovery <-> JSON text, so that rows and the inputs of decisions can be kept and read again.

In: frozen dataclasses of `words` and `inputs`. Out: one line of JSON, keys sorted, sets as sorted lists; the same value gives the same bytes.
Always: `load(type, dump(value)) == value`; what does not fit the type raises ValueError with the place, and nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import orjson

T = TypeVar("T")
TEXT_MAX = 4 * 1024 * 1024  # of one stored value; no decision comes near


def dump(value: Any) -> str:
    """One line of JSON. Raises TypeError for what is no plain value."""
    return orjson.dumps(plain(value), option=orjson.OPT_SORT_KEYS).decode()


def load(shape: type[T], text: str | bytes) -> T:
    """The value of a JSON text. Raises ValueError with what is wrong where."""
    if len(text) > TEXT_MAX:
        raise ValueError(f"longer than {TEXT_MAX} bytes")
    return cast(T, _reader(cast(Any, shape))(orjson.loads(text), shape.__name__))


def plain(value: Any) -> Any:
    """Dataclasses to mappings, tuples to lists, sets to sorted lists; text that is no UTF-8 is shown with backslashes."""
    if value is None or value is True or value is False:
        return value
    kind: Any = type(value)
    if kind is int or kind is float:
        return value
    if kind is str:
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if kind is tuple or kind is list:
        return [plain(v) for v in value]
    if kind is frozenset:
        return sorted(plain(v) for v in value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _names(kind)}
    raise TypeError(f"{kind.__name__} is no plain value")


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


@functools.cache
def _reader(hint: Any) -> Callable[[Any, str], Any]:
    """A function (JSON value, place) -> value of the type."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (str, int, float, bool) or hint is type(None):
        return _atom(hint)
    if origin is Literal:
        return _literal(frozenset(args))
    if origin in (Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        return _optional(_reader(inner[0])) if len(inner) == 1 else _either([_reader(a) for a in inner])
    if origin is tuple:
        return _many(_reader(args[0])) if args[-1] is ... else _fixed([_reader(a) for a in args])
    if origin is frozenset:
        return _set(_reader(args[0]))
    if origin is dict:
        return _mapping(_reader(args[0]), _reader(args[1]))
    if hasattr(hint, "__metadata__"):  # Annotated: bounds are checked where a policy file is read
        return _reader(args[0] if args else hint.__origin__)
    if dataclasses.is_dataclass(hint):
        return _record(hint)
    raise TypeError(f"{hint} cannot be read from JSON")


def _wrong(place: str, wanted: str, value: Any) -> ValueError:
    return ValueError(f"{place}: {wanted} is wanted, not {str(value)[:60]!r}")


def _atom(kind: type[Any]) -> Callable[[Any, str], Any]:
    def read(value: Any, place: str) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise _wrong(place, kind.__name__, value)
        return value

    return read


def _literal(known: frozenset[Any]) -> Callable[[Any, str], Any]:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, str | int) or value not in known:
            raise _wrong(place, " or ".join(sorted(map(str, known))), value)
        return value

    return read


def _optional(inner: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, place: None if value is None else inner(value, place)


def _either(inner: list[Callable[[Any, str], Any]]) -> Callable[[Any, str], Any]:
    def read(value: Any, place: str) -> Any:
        for one in inner:
            try:
                return one(value, place)
            except ValueError:
                continue
        raise _wrong(place, "another kind of value", value)

    return read


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(place, "a list", value)
    return value


def _many(inner: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, place: tuple(inner(v, f"{place}[{i}]") for i, v in enumerate(_list(value, place)))


def _fixed(inner: list[Callable[[Any, str], Any]]) -> Callable[[Any, str], Any]:
    def read(value: Any, place: str) -> Any:
        if len(_list(value, place)) != len(inner):
            raise _wrong(place, f"{len(inner)} values", value)
        return tuple(one(v, f"{place}[{i}]") for i, (one, v) in enumerate(zip(inner, value, strict=True)))

    return read


def _set(inner: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, place: frozenset(inner(v, place) for v in _list(value, place))


def _mapping(key: Callable[[Any, str], Any], inner: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, "a mapping", value)
        return {key(k, place): inner(v, f"{place}.{k}") for k, v in value.items()}

    return read


def _record(shape: Any) -> Callable[[Any, str], Any]:
    """Built late: a type may hold itself. A key that is not told takes its default, an unknown one is refused."""
    readers: dict[str, Callable[[Any, str], Any]] = {}

    def read(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(place, "a mapping", value)
        if not readers:
            readers.update({k: _reader(h) for k, h in get_type_hints(shape).items() if k in _names(shape)})
        unknown = value.keys() - readers.keys()
        if unknown:
            raise ValueError(f"{place}: unknown key '{min(unknown)[:60]}'")
        try:
            return shape(**{k: readers[k](v, f"{place}.{k}") for k, v in value.items()})
        except TypeError as e:
            raise ValueError(f"{place}: {e}") from e

    return read
