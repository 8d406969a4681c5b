"""Flower: a strategy and a client app that run DPilot's methods, controllers and ledger in a real federation."""

import logging
from importlib import metadata

from fl_core.base.errors import InputError

LEAST = (1, 20)
"""Version of flwr that first has the Message API's strategies."""

try:
    _found = metadata.version("flwr")
except metadata.PackageNotFoundError as error:
    raise InputError("experiments.flower needs the package flwr: pip install 'dpilot[flower]'.") from error
if tuple(int(part) for part in _found.split(".")[:2]) < LEAST:
    raise InputError(f"experiments.flower needs flwr 1.20 or newer, but {_found} is installed.")


def _in_a_sentence(record: logging.LogRecord) -> bool:
    """Take the traceback off what Flower logs of an app that a sentence has stopped."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, InputError):
        record.msg, record.args, record.exc_info, record.exc_text = "%s", (str(error),), None, None
    return True


logging.getLogger("flwr").addFilter(_in_a_sentence)
