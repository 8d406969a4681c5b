"""Admission of nodes: each says which client of which federation it is before anything is charged or sent to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from experiments.flower.records import ROUND
from fl_core.base.errors import InputError, require
from fl_core.base.text import short


class Nodes:
    """Nodes of a federation that are connected and admitted.

    Attributes:
        numbers: node -> number of its client.
    """

    def __init__(self, asked: Mapping[str, Any], clients: int):
        """Begin without nodes.

        Args:
            asked: what each node is told, to refuse what it cannot do: `terms` of the federation, which it must share,
                `parameters` of the model, and `telemetry` that rounds may ask for.
            clients: that the federation promises.
        """
        self.numbers: dict[int, int] = {}
        self._asked, self._terms, self._clients = dict(asked), str(asked["terms"]), clients
        self._refused: set[int] = set()
        self._twins: dict[int, str] = {}
        self._silent: dict[int, str] = {}

    def connect(self, grid: Grid, seconds: float, begun: bool) -> None:
        """Wait until as many nodes are connected as the federation has clients, and learn who they are.

        Args:
            grid: of the nodes.
            seconds: how long they are waited for.
            begun: True if rounds were charged before; one node is enough then.

        Raises:
            InputError: too few are connected, or one is of another federation.
        """
        end = time.monotonic() + seconds
        while True:
            for refusal in self.introduce(grid, end - time.monotonic()):
                raise InputError(f"{refusal} Nothing was sent.")
            if len(self.numbers) >= self._clients or time.monotonic() > end:
                break
            time.sleep(0.5)
        found, reasons = len(self.numbers), (*self._twins.values(), *self._silent.values())
        least = 1 if begun else self._clients
        require(found >= least or not reasons, f"{' '.join(reasons[:1])} Nothing was sent.")
        require(
            found >= self._clients or begun,
            f"{found} nodes are connected after {seconds:g} s, but the federation promises {self._clients} clients, "
            "on whom its sampling rate and its epsilon rest; nothing was sent.",
        )
        require(found > 0, f"No node is connected after {seconds:g} s; nothing was sent.")

    def introduce(self, grid: Grid, seconds: float = 30.0) -> list[str]:
        """Ask nodes that are new which client they are, and forget those that have gone.

        Returns:
            Why nodes are refused, which are never asked again.
        """
        online = set(grid.get_node_ids())
        self.numbers = {node: number for node, number in self.numbers.items() if node in online}
        self._twins, self._silent = {}, {}
        new = online - set(self.numbers) - self._refused
        if not new:
            return []
        content = RecordDict({ROUND: ConfigRecord(self._asked)})
        messages = [Message(content, node, MessageType.QUERY) for node in sorted(new)]
        replies = grid.send_and_receive(messages, timeout=max(1.0, seconds))
        return [refusal for reply in replies if (refusal := self._admit(reply))]

    def _admit(self, reply: Message) -> str:
        """Take in a node that has introduced itself; returns why it is refused, or ""."""
        node = reply.metadata.src_node_id
        told = reply.content.config_records.get(ROUND) if reply.has_content() else None
        if told is None:
            reason = reply.error.reason if reply.has_error() else "its app answers nothing that is understood"
            self._silent[node] = f"Node {node} did not introduce itself: {' '.join(str(reason).split())}."
            log(WARNING, "DPilot: %s It is asked again.", self._silent[node])
            return ""
        number, own = told.get("number"), told.get("terms")
        refusal = ""
        if "refusal" in told:
            refusal = f"Node {node} refuses: {short(told['refusal'], 300)[1:-1]}"
        elif own != self._terms:
            refusal = f"Node {node} runs {short(own, 300).strip(chr(39))}, but the server runs {self._terms}."
        elif not isinstance(number, int) or not 0 <= number < self._clients:
            refusal = f"Node {node} is client {short(number)}, but the federation has 0 to {self._clients - 1}."
        elif number in self.numbers.values():  # a node that was started anew, until Flower misses the old one
            self._twins[node] = f"Node {node} is client {number}, as another connected node is."
            log(WARNING, "DPilot: %s It takes no part until that one has gone.", self._twins[node])
            return ""
        if refusal:
            self._refused.add(node)
        else:
            self.numbers[node] = int(number)
        return refusal
