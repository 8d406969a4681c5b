import dataclasses

import pytest
import torch

from fl_core.models.build import build_model
from fl_core.recipes.catalog import METHODS
from fl_core.recipes.objective import Phase, Update
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from fl_core.training import executors, programs
from fl_core.training.chunks import chunk_size
from fl_core.training.executors import Executor
from fl_core.training.images import Images
from fl_core.training.optimizers import Optimizer
from fl_core.training.work import LocalWork


def settings(method: str, **changes) -> FederationConfig:
    epsilon = 7.5 if METHODS[method].private or not METHODS[method].exchanges else float("inf")
    base = FederationConfig(method=method, epsilon=epsilon, clients=8, rounds=3, partition="dirichlet(0.5)")
    return dataclasses.replace(base, **changes)


def relative(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).norm() / second.norm().clamp_min(1e-12))


KINDS = ("fedavg", "local-only", "dp-pfeddsu", "feddpa", "acdp-pfsd", "ppsgd", "dp-fedsam")
"""One method for each way that local training differs; the others are compared on the mlp in `test_modes`."""


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "cnn2-groupnorm", "momentum": 0.5, "weight_decay": 0.01, "learning_rate": 0.1},
        {"local_epochs": 1.5, "sampling_rate": 0.5, "optimizer": "adam", "learning_rate": 0.01},
    ],
)
def test_executors_agree_after_a_round_of_convolutions_and_of_epochs(method, changes):
    runs = {}
    for executor in ("vectorized", "sequential"):
        federation = Federation(settings(method, executor=executor, **changes), runs=2)
        report = federation.run_round(RoundPlan.constant(2, 0.7), evaluate=True)
        runs[executor] = federation, report
    (stacked, first), (plain, second) = runs["vectorized"], runs["sequential"]
    tolerance = 1e-4
    assert relative(stacked.server, plain.server) < tolerance
    for name, value in plain.clients.items():
        assert relative(stacked.clients[name], value) < tolerance
    for name in ("train_loss", "personal_loss", "global_loss"):
        assert first.figures[name] == pytest.approx(second.figures[name], rel=1e-3)


def plain_training(model, start, images, labels, batches, lr, momentum):
    """One client, with a module and PyTorch's optimizer."""
    module = model.make_module()
    torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr, momentum)
    losses = []
    for batch in batches:
        loss = torch.nn.functional.cross_entropy(module(images[batch].float() / 16), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach(), sum(losses) / len(losses)


@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
@pytest.mark.parametrize("name", ["mlp", "cnn2"])
def test_local_training_equals_a_plain_loop(kind, name):
    torch.manual_seed(0)
    model = build_model(name, (1, 8, 8), 10)
    images, labels = torch.randint(0, 17, (60, 1, 8, 8), dtype=torch.uint8), torch.randint(0, 10, (60,))
    start = torch.stack([model.initial(seed) for seed in range(5)])
    batches = torch.randint(0, 60, (5, 3, 8))
    work = LocalWork(
        parameters=start,
        phases=(Phase(),),
        batches=(batches,),
        active=(None,),
        context={"start": start},
        learning_rate=torch.full((5,), 0.1),
        optimizer=Optimizer(momentum=0.9),
    )
    trained, losses = Executor(model, kind).train(work, Images(images, labels, 16))
    for row in range(5):
        expected, loss = plain_training(model, start[row], images, labels, batches[row], 0.1, 0.9)
        torch.testing.assert_close(trained[row], expected, atol=1e-5, rtol=1e-4)
        assert float(losses[row]) == pytest.approx(loss, rel=1e-4)


@pytest.fixture(scope="module")
def work():
    model = build_model("mlp", (1, 8, 8), 10)
    torch.manual_seed(1)
    images = Images(torch.randint(0, 17, (40, 1, 8, 8), dtype=torch.uint8), torch.randint(0, 10, (40,)), 16)
    start = torch.stack([model.initial(seed) for seed in range(7)])
    return (
        model,
        images,
        LocalWork(
            parameters=start,
            phases=(Phase(),),
            batches=(torch.randint(0, 40, (7, 4, 5)),),
            active=(None,),
            context={"start": start},
            learning_rate=torch.full((7,), 0.1),
            optimizer=Optimizer(),
        ),
    )


def test_chunks_and_padding_do_not_change_the_result(work):
    model, images, local = work
    whole, losses = Executor(model, "vectorized").train(local, images)
    chunked, chunked_losses = Executor(model, "vectorized", memory_limit=3 * 4 * 6 * 2410 + 3).train(local, images)
    assert chunk_size(model, local, 1) == 1
    torch.testing.assert_close(whole, chunked, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(losses, chunked_losses, atol=1e-6, rtol=1e-5)
    varying = dataclasses.replace(local, rows_vary=True)
    torch.testing.assert_close(Executor(model, "vectorized").train(varying, images)[0], whole, atol=1e-6, rtol=1e-5)


class Memory:
    """Training that runs out of memory with more than `most` rows stacked, and notes how many were tried."""

    def __init__(self, most: int, error: Exception):
        self.most, self.error = most, error
        self.tried: list[int] = []
        self._train = executors._train_chunk

    def __call__(self, model, work, images):
        self.tried.append(len(work.parameters))
        if self.tried[-1] > self.most:
            raise self.error
        return self._train(model, work, images)


FULL = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory: you tried ..."),
    MemoryError(),
)


@pytest.mark.parametrize("error", FULL)
def test_clients_that_do_not_fit_are_stacked_in_half_as_many_from_then_on(work, error, monkeypatch):
    model, images, local = work
    whole, losses = Executor(model, "vectorized").train(local, images)
    memory = Memory(4, error)
    monkeypatch.setattr(executors, "_train_chunk", memory)
    executor = Executor(model, "vectorized")
    for _ in range(2):
        found, found_losses = executor.train(local, images)
        torch.testing.assert_close(found, whole, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found_losses, losses, atol=1e-6, rtol=1e-5)
    assert memory.tried == [7, *[3] * 3, *[3] * 3]


@pytest.mark.parametrize(
    ("most", "error", "tried"), [(2, FULL[0], [7, 3]), (0, RuntimeError("shapes do not match"), [7])]
)
def test_what_half_of_the_clients_do_not_mend_is_raised(work, most, error, tried, monkeypatch):
    model, images, local = work
    memory = Memory(most, error)
    monkeypatch.setattr(executors, "_train_chunk", memory)
    with pytest.raises(RuntimeError) as raised:
        Executor(model, "vectorized").train(local, images)
    assert raised.value is error
    assert memory.tried == tried


def test_a_round_that_did_not_fit_at_first_is_charged_once_and_releases_the_same(monkeypatch):
    config = settings("feddpa", executor="vectorized")
    runs = []
    for most in (100, 4):
        monkeypatch.setattr(executors, "_train_chunk", Memory(most, FULL[0]))
        federation = Federation(config)
        federation.run_round(RoundPlan.constant(1))
        runs.append((federation.server.clone(), federation.ledgers[0].rows))
        monkeypatch.undo()
    (whole, charges), (halved, charges_halved) = runs
    assert relative(halved, whole) < 1e-5
    assert charges == charges_halved
    assert len(charges) == 1


@pytest.mark.parametrize("trains", ["all", "head"])
def test_gradients_in_pieces_move_every_coordinate_as_one_gradient_does(work, trains, monkeypatch):
    model, images, local = work
    active = torch.rand(7, 4, generator=torch.Generator().manual_seed(2)) < 0.7
    both = {
        "phases": (Phase((Update(trains=trains),)),),
        "optimizer": Optimizer(momentum=0.9, weight_decay=0.1),
    }
    trained = []
    for piece_size in (1, 10**9):
        monkeypatch.setattr(programs, "PIECE_SIZE", piece_size)
        for masks in ((None,), (active,)):
            found, _ = Executor(model, "vectorized").train(dataclasses.replace(local, active=masks, **both), images)
            trained.append(found)
    assert torch.equal(trained[0], trained[2])
    assert torch.equal(trained[1], trained[3])
    assert not torch.equal(trained[0], trained[1])


def test_pieces_are_the_tensors_and_what_a_method_adds(work):
    model, _, local = work
    longer = torch.cat([local.parameters, local.parameters[:, :5]], dim=1).repeat(5, 1)
    widths = programs._widths(model, Update(), longer, apart=True)
    assert widths == (64 * 32, 32, 32 * 10, 10, 5)
    assert programs._widths(model, Update(), longer, apart=False) == (sum(widths),)
    assert programs._widths(model, Update(), longer[:7], apart=True) == (sum(widths),)  # too small to be worth it
    assert programs._widths(model, Update(trains="none"), longer, apart=True) == (0,)


def test_images_kept_as_floats_read_as_those_converted_later(monkeypatch):
    pixels, labels = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8), torch.arange(4)
    index = torch.tensor([[3, 0], [1, 1]])
    early = Images(pixels, labels, 255).read(index)
    monkeypatch.setattr("fl_core.training.images.FLOAT_IMAGES", 0)
    late = Images(pixels, labels, 255).read(index)
    assert torch.equal(early[0], late[0])
    assert torch.equal(early[0], pixels[index].float() / 255)
    assert torch.equal(early[1], late[1])


@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
def test_inactive_steps_leave_a_client_where_it_is(work, kind):
    model, images, local = work
    active = torch.ones(7, 4, dtype=torch.bool)
    active[2, 1:] = False
    active[3] = False
    trained, losses = Executor(model, kind).train(dataclasses.replace(local, active=(active,)), images)
    shorter = dataclasses.replace(local, batches=(local.batches[0][:, :1],))
    one_step, one_loss = Executor(model, kind).train(shorter, images)
    torch.testing.assert_close(trained[2], one_step[2])
    torch.testing.assert_close(losses[2], one_loss[2])
    assert torch.equal(trained[3], local.parameters[3])


@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_phase_moves_only_the_part_it_trains(work, kind, part):
    model, images, local = work
    phases = (Phase(updates=(Update(trains=part),)),)
    trained, _ = Executor(model, kind).train(dataclasses.replace(local, phases=phases), images)
    span = model.span(part).slice
    still = torch.ones(model.size, dtype=torch.bool)
    still[span] = False
    assert torch.equal(trained[:, still], local.parameters[:, still])
    assert not torch.equal(trained[:, span], local.parameters[:, span])
    both = (Phase(updates=(Update(trains="body"), Update(trains="head"))),)
    moved, _ = Executor(model, kind).train(dataclasses.replace(local, phases=both), images)
    assert (moved != local.parameters).float().mean() > 0.5


def test_auto_records_what_it_measured(work):
    model, images, local = work
    executor = Executor(model, "auto")
    executor.train(local, images)
    assert executor.choice.startswith(("vectorized (measured", "sequential (measured"))
    again = Executor(model, "auto")
    again.train(local, images)
    assert again.choice == executor.choice


@pytest.mark.parametrize("kind", ["vectorized", "sequential"])
def test_scores_equal_a_plain_forward_pass(work, kind):
    model, images, local = work
    index = torch.randint(0, 40, (7, 12))
    hits, losses = Executor(model, kind).score(local.parameters, index, images)
    for row in range(7):
        inputs, labels = images.read(index[row])
        logits = model.logits(local.parameters[row], inputs)
        assert torch.equal(hits[row], (logits.argmax(-1) == labels).float())
        expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        torch.testing.assert_close(losses[row], expected, atol=1e-5, rtol=1e-4)
    shared, _ = Executor(model, kind).score(local.parameters, index[:1], images)
    assert torch.equal(shared[0], hits[0])
    assert shared.shape == (7, 12)
