"""Bytes of an upload, counted by hand."""

import numpy as np
import pytest
import torch

from experiments.papers.measures import MEASURES
from fl_core.models.build import build_model
from fl_core.run.federation import Federation
from tests.fl_core.plain import BODY, HEAD, config, plan

torch.set_num_threads(1)
SIZE = BODY + HEAD


def bytes_of(method: str, rounds: int = 1, **changes) -> float:
    """Of the last of so many rounds; clients move at random."""
    federation = Federation(config(method, **({"clients": 4} | changes)))

    def train(work, images):
        moves = torch.randn(work.parameters.shape, generator=torch.Generator().manual_seed(0))
        return work.parameters + moves, torch.ones(len(moves))

    federation.executor.train = train
    for _ in range(rounds):
        figures = federation.run_round(plan()).figures
    return float(figures["uplink_bytes"][0])


@pytest.mark.parametrize("method", ["fedavg", "dp-fedavg", "feddpa", "ppsgd", "pmtl-ft", "acdp-pfsd"])
def test_whole_models_cost_four_bytes_a_parameter(method):
    assert bytes_of(method) == 4 * SIZE


def test_parts_that_stay_at_home_cost_nothing():
    assert bytes_of("fedper") == 4 * BODY
    assert bytes_of("dp-lg") == 4 * HEAD


def test_masks_that_everybody_knows_need_not_be_told():
    assert bytes_of("fed-smp") == 4 * round(0.4 * SIZE)
    assert bytes_of("fed-smp", set="sparsity=0.1") == 4 * round(0.1 * SIZE)
    assert bytes_of("dp-pfeddsu") == 4 * round(0.05 * BODY)
    assert bytes_of("fedglp-adp", rounds=1) == 4 * SIZE


def test_a_private_choice_is_told_by_a_bit_each_or_by_positions():
    """Positions cost 4 bytes each, which is less below one parameter in 32."""
    assert bytes_of("blur-lus") == 4 * round(0.5 * SIZE) + SIZE / 8
    assert bytes_of("blur-lus", set="sparsity=0.01") == (4 + 4) * round(0.01 * SIZE)
    assert bytes_of("fedavg", set="sparsification=top-k,sparsity=0.25") == 4 * round(0.25 * SIZE) + SIZE / 8
    own = "sparsification=random,sparsification.drawn_by=client,sparsification.sparsity=0.25"
    assert bytes_of("fedavg", set=own) == 4 * round(0.25 * SIZE) + SIZE / 8
    assert bytes_of("fedper", set="sparsification=top-k") == 4 * SIZE / 2 + SIZE / 8
    assert bytes_of("dp-pfeddsu", guarantee="as-published") == 4 * round(0.05 * BODY) + SIZE / 8


@pytest.mark.parametrize("placement", ["distributed", "local"])
def test_where_clients_noise_what_they_left_out_all_of_it_is_sent(placement):
    assert bytes_of("blur-lus", placement=placement) == 4 * SIZE
    assert bytes_of("adp-pfl", guarantee="as-published") == 4 * SIZE
    assert bytes_of("fedper", set="sparsification=top-k", placement=placement) == 4 * BODY
    assert bytes_of("fed-smp", placement=placement) == 4 * round(0.4 * SIZE)


@pytest.mark.parametrize("guarantee", ["sound", "as-published"])
def test_fedglp_adps_uploads_shrink_as_masks_grow(guarantee):
    """Eq. 20: 32·M·(1 - t·β/T) bits, and where masks are the clients' own M bits for the mask."""
    made = config("fedglp-adp", clients=4, rounds=6, guarantee=guarantee, set="noise_growth=0")
    federation = Federation(made)
    federation.executor.train = lambda work, images: (work.parameters + 0.1, torch.ones(len(work.parameters)))
    told = SIZE / 8 if guarantee == "as-published" else 0
    layers = len(build_model("mlp", (1, 8, 8), 10).layers)
    for index in range(6):
        figures = federation.run_round(plan()).figures
        expected = 4 * SIZE * (1 - index * 0.3 / 6) + told
        assert figures["uplink_bytes"][0] == pytest.approx(expected, abs=4 * layers / 2)
        assert figures["personal_share"][0] == pytest.approx(index * 0.3 / 6, abs=layers / 2 / SIZE)
    shares = [round(share * size) for share in (0.25,) for size in (BODY, HEAD)]
    assert figures["uplink_bytes"][0] == 4 * (SIZE - sum(shares)) + told


def test_clients_of_a_cohort_are_averaged_over(monkeypatch):
    federation = Federation(config("fedglp-adp", clients=3, guarantee="as-published"))
    federation.executor.train = lambda work, images: (work.parameters + 0.1, torch.ones(len(work.parameters)))
    personal = torch.zeros(3, SIZE)
    for client, share in enumerate((0.0, 0.5, 0.1)):
        personal[client, : round(share * SIZE)] = 1
    federation.state.clients.seat([np.arange(3)])
    federation.state.clients.put("personal", torch.zeros(3, dtype=torch.int64), torch.arange(3), personal)
    figures = federation.run_round(plan()).figures
    assert figures["uplink_bytes"][0] == pytest.approx(4 * (SIZE - np.mean([0, 1205, 241])) + SIZE / 8)
    assert figures["personal_share"][0] == pytest.approx(0.2, rel=1e-3)


def test_published_clients_noise_what_their_choice_left_out_and_send_all_of_it():
    """BLUR+LUS: in the paper each client adds its share of the noise, on every coordinate."""
    assert bytes_of("blur-lus", guarantee="as-published") == 9640
    assert bytes_of("blur-lus") == 4 * 1205 + SIZE / 8
    steps = "sparsification=reparameterized,sparsification.mask_from=step"
    assert bytes_of("dp-fedavg", set=steps, guarantee="as-published") == 4 * SIZE
    assert bytes_of("dp-fedavg", set=f"{steps},upload_noise=true", guarantee="as-published") < 4 * 0.4 * SIZE


@pytest.mark.parametrize("limit", [0.1, 0.3])
def test_a_growing_mask_saves_what_equation_20_of_fedglp_adp_counts(limit):
    """Round t of T starts with (t - 1)/T of the limit personal; the mask costs a bit per parameter of 32 bits."""
    rounds, sent = 20, []
    edits = f"personalization.limit={limit},personalization.noise_growth=0"
    changes = {"clients": 4, "delta": 0.1, "rounds": rounds, "local_steps": 1, "guarantee": "as-published"}
    federation = Federation(config("fedglp-adp", set=edits, **changes))
    for _ in range(rounds):
        sent.append(float(federation.run_round(plan()).figures["uplink_bytes"][0]))
    record = {"uplink_bytes": np.mean(sent), "parameters": federation.model.size}
    saved = MEASURES["uplink_saving"].read(record, 0.0).value
    assert saved == pytest.approx(100 * (limit * (rounds - 1) / (2 * rounds) - 1 / 32), abs=0.15)
