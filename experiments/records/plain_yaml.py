"""YAML files of plain values, whoever wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fl_core.base.errors import InputError
from fl_core.base.files import MOST_BYTES, check_values, read_bytes


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML of plain values: no anchors, which unfold without end, no tags, no dates, no name twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.YAMLError("it has an anchor or an alias")
        if getattr(event, "tag", None):
            raise yaml.YAMLError(f"it has the tag {event.tag}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        seen: set[str] = set()
        for name in names:
            if not isinstance(name, str) or name in seen:
                raise yaml.YAMLError(f"a name in it is no text, or stands twice: {name!r:.60}")
            seen.add(name)
        return super().construct_mapping(node, deep)


_PlainLoader.yaml_implicit_resolvers = {
    letter: [(tag, form) for tag, form in forms if not tag.endswith(("timestamp", "merge", "value"))]
    for letter, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values, whoever wrote it.

    Raises:
        InputError: it is missing, unreadable or no YAML, has anchors or tags, or holds what no record does.
    """
    content, what = read_bytes(path, MOST_BYTES), f"The file '{path}'"
    try:
        value = yaml.load(content.decode("utf-8"), Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise InputError(f"{what} is not plain YAML: {reason}.") from error
    check_values(value, what, finite=False)
    return value
