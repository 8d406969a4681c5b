"""Controllers that can steer a run outside a simulation: those that need no search there and nothing to learn from."""

from __future__ import annotations

from experiments.contenders.contenders import Contender, HandCoded, Learned, Online, Tuned
from experiments.contenders.preparing import parse_contender
from experiments.contenders.rounds_search import RoundsContender
from fl_core.base.errors import require


def parse_deployable(spec: str) -> Contender:
    """Read a spec such as `aqc`, `exponential-decay:2:0.5` or `ppo:runs/NAME`.

    Raises:
        InputError: it cannot be read, or what it names is searched or learned in simulated runs.
    """
    contender = parse_contender(spec)
    reason = _why_not(contender)
    require(not reason, f"controller '{spec}' {reason}.")
    return contender


def _why_not(contender: Contender) -> str:
    match contender:
        case Tuned() | RoundsContender():
            return "is searched in simulated runs; deploy what dpilot compare has found, with its numbers"
        case HandCoded() if contender.derives:
            return (
                "derives its clip norm from a search in simulated runs; write the numbers of its clip norms, such as "
                "fixed:0.8 or exponential-decay:2:0.5, or multiples of a calibrated one, such as fixed:1x"
            )
        case Online():
            return "learns within a simulated run; deploy a trained one, such as ppo:runs/NAME"
        case Learned() if contender.trainings_named > 1:
            return f"names {contender.trainings_named} trainings; deploy one of them"
        case _:
            return ""
