"""Adjacency: which two populations of clients an ε makes hard to tell apart.

σ is always the noise's standard deviation over C, the most that one client's contribution adds to the released sum.
Neighbours whose sums differ by 2C are counted with σ/2.
"""

from __future__ import annotations

from dataclasses import dataclass

from fl_core.base.errors import require


@dataclass(frozen=True)
class Adjacency:
    """A line of the catalogue.

    Attributes:
        summary: how neighbours differ.
        hides: what an observer cannot tell, and what it may.
        sensitivity: most that the released sum differs between neighbours, over C.
    """

    summary: str
    hides: str
    sensitivity: int


ADJACENCIES: dict[str, Adjacency] = {
    "add-remove": Adjacency(
        "one client more or less",
        "hides a client's data and that it is one of the clients; needs Poisson cohorts, or all clients in every round",
        1,
    ),
    "zero-out": Adjacency(
        "the same clients, one of which contributes nothing",
        "hides what a client contributes, but neither how many clients there are nor that it is one of them; with "
        "fixed cohorts it does not hide who takes the place of a client that leaves",
        1,
    ),
    "replace-one": Adjacency(
        "one client's data exchanged for any other's",
        "hides which data a client holds and, in fixed cohorts, also who takes its place; costs twice the noise, and "
        "no amplification by sampling is counted for it",
        2,
    ),
}
"""Every adjacency by name."""


def default_adjacency(sampling: str, placement: str) -> str:
    """Return the adjacency of an ε whose configuration names none.

    A client more is a cohort's only change where cohorts are Poisson and nobody sees who takes part.
    """
    return "add-remove" if sampling == "poisson" and placement != "local" else "zero-out"


def amplified_rate(sampling: str, sampling_rate: float, placement: str, adjacency: str) -> float:
    """Return the Poisson rate q that privacy amplification by subsampling is counted for; 1 for none.

    Only secret Poisson cohorts amplify: not fixed ones, not under `local` placement, where the server sees who takes
    part, and not under replace-one adjacency.
    """
    secret = sampling == "poisson" and placement != "local" and adjacency != "replace-one"
    return sampling_rate if secret else 1.0


def require_adjacency(adjacency: str, sampling: str, sampling_rate: float, placement: str) -> None:
    """Refuse an adjacency that the sampling or the observer of the uploads excludes.

    Raises:
        InputError: the sentence names one that would do.
    """
    whole = sampling == "fixed" and sampling_rate == 1
    require(
        adjacency != "add-remove" or sampling == "poisson" or whole,
        "adjacency is add-remove, but sampling is fixed, where one client more takes another's place in the "
        "cohort; take zero-out, or replace-one, which counts that.",
    )
    require(
        adjacency != "add-remove" or placement != "local",
        "adjacency is add-remove, but placement is local, where the server sees who takes part; take zero-out or "
        "replace-one.",
    )
