import sys

import pytest

from experiments.benchmarks.peers import COMPARED, peer_cost


def test_a_round_is_measured_where_the_peer_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.benchmarks.peers.find_spec", lambda name: None)
    cost = peer_cost(COMPARED[0], rounds=2)
    assert 0 < cost.products < cost.seconds * 5
    assert cost.peak_share > 0
    assert cost.over_peer is None
    assert "pfl" not in sys.modules
