"""Nodes of a federation in one process: a grid that calls their app."""

import pytest
from flwr.app import Context, RecordDict

from experiments.flower.client import make_client_app

FIRST_NODE = 1000


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch):
    """Let messages be made here: since flwr 1.30 they are made in a task, which its own processes know."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class ProcessGrid:
    """Nodes in one process; `tamper` may change, drop or double what a node answers."""

    def __init__(self, setting, nodes=None, tamper=lambda message, reply: [reply]):
        count = setting.federation.clients if nodes is None else nodes
        self.app = make_client_app(lambda context: setting.federation)
        self.tamper, self.trained, self.on_train = tamper, [], lambda: None
        self.contexts = {
            FIRST_NODE + number: Context(0, FIRST_NODE + number, {"partition-id": number}, RecordDict(), {})
            for number in range(count)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            reply = self.app(message, self.contexts[node])
            if message.metadata.message_type == "train":
                self.on_train()
                self.trained.append((message.metadata.group_id, node))
                replies += self.tamper(message, reply)
            else:
                replies.append(reply)
        return replies
