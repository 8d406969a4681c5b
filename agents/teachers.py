"""Controllers that a policy may be cloned from, read without what a clone is made with."""

from __future__ import annotations

from fl_core.base.errors import require, require_name
from policies.catalog import CONTROLLERS
from policies.specs import ControllerSpec, parse_controller, split_specs


def read_teacher(spec: str) -> ControllerSpec:
    """Read the spec of a controller to imitate, one of the catalogue: a record's code must not be imported.

    Raises:
        InputError: it is none of the catalogue, or its parameters are wrong.
    """
    for one in split_specs(spec):
        require_name("imitate", one.partition(":")[0].strip(), CONTROLLERS.names())
    found = parse_controller(spec)
    require(
        not any(one.controller.tuned or one.multiples for one in found.parts),
        f"imitate is '{spec}', but a controller to imitate needs clip norms that no search or calibration gives.",
    )
    return found
