"""Handing over of parts to processes that this one starts: what is registered or given here is known nowhere else."""

from __future__ import annotations

import pickle

from fl_core.base.catalogue import CATALOGUES
from fl_core.base.sources import Origin, told

Packed = dict[str, dict[str, tuple[bytes, str, Origin]]]
"""By kind and name: the part's pickle, the reason where it has none, and its origin."""


def pack_parts() -> Packed:
    """Pack all parts that another process would not know by itself; one that cannot be packed is refused there."""
    return {
        one.kind: {
            name: (*_pickled(part), one.origin(name)) for name, part in one.items() if not one.origin(name).built_in
        }
        for one in CATALOGUES
    }


def _pickled(part: object) -> tuple[bytes, str]:
    try:
        return pickle.dumps(part), ""
    except Exception as error:  # whatever an object's own pickling raises
        return b"", told(error)


def unpack_parts(packed: Packed) -> None:
    """Enter the parts that the process which started this one had."""
    for catalogue in CATALOGUES:
        for name, (content, reason, origin) in packed.get(catalogue.kind, {}).items():
            if name in catalogue:
                continue  # the main script registers it here too
            try:
                if not reason:
                    catalogue.put(name, pickle.loads(content), origin)
            except Exception as error:  # as where its class stands in a session that no file holds
                reason = told(error)
            if reason:
                catalogue.lost[name] = f"cannot be handed to another process ({reason}); write it in a file, FILE:NAME"
