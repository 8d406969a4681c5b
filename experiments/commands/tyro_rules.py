"""Rules by which tyro reads the options of a command: the same ones as its own, in a third of the time.

It checks the default of an option with a generic type, as `Path | None`, by typeguard, which loads asyncio and the
standard library's mocks; and it reads the sources of all classes for the help of their fields, which a command line
without `--help` does not show.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Annotated, Any, get_args, get_origin

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)


def rules(explained: bool) -> ConstructorRegistry:
    """Make the rules, which hold inside a `with` statement.

    Args:
        explained: whether help is shown.
    """
    registry = ConstructorRegistry()
    registry.struct_rule(_Rule(explained))
    return registry


class _Rule:
    """Rule of dataclasses: tyro's own, with other annotations of generic types, and help where it is shown."""

    def __init__(self, explained: bool):
        self._explained = explained
        self._asks = False

    def __call__(self, info: StructTypeInfo) -> StructConstructorSpec | None:
        if self._asks or not is_dataclass(info.type):
            return None  # to the next rule, which is tyro's
        self._asks = True
        try:
            found = ConstructorRegistry.get_struct_spec(info)
        finally:
            self._asks = False
        if not isinstance(found, StructConstructorSpec):
            return None
        return replace(found, fields=tuple(map(self._field, found.fields)))

    def _field(self, field: StructFieldSpec) -> StructFieldSpec:
        kind = _plain(field.type)
        return replace(field, type=kind) if self._explained else replace(field, type=kind, helptext="")


def _plain(annotation: Any) -> Any:
    """Annotate an option of a generic type as any object that is read from text as tyro reads that type."""
    kind, *remarks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if get_origin(kind) is None:
        return annotation
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(annotation, set()))
    return Annotated[(object, spec, *remarks)] if isinstance(spec, PrimitiveConstructorSpec) else annotation
