"""Simplified programs give what the traced ones gave, bit for bit, each time they are run."""

import pytest
import torch

from fl_core.models.tracing import trace
from fl_core.training.passes import simplify

INPUT = torch.linspace(-1, 1, 24).view(4, 6)


def traced(function, simplified: bool):
    program = trace(function, INPUT.clone())
    if simplified:
        simplify(program)
    return program


def calls(program) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def loss_gradient(rows):
    leaf = rows.detach().requires_grad_()
    with torch.enable_grad():
        losses = torch.log_softmax(leaf.view(4, 6), -1)[:, :2].mean(-1).expand(4)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return gradient, losses.detach()


def regrouped(rows):
    return torch.cat([rows[:, :2] * 3, rows[:, 2:] + 1], 1).split((2, 4), 1)


def regrouped_elsewhere(rows):
    return torch.cat([rows[:, :2] * 3, rows[:, 2:] + 1], 1).split((3, 3), 1)


def regrouped_across(rows):
    return torch.cat([rows[:2] * 3, rows[2:] + 1], 0).split((2, 4), 1)


@pytest.mark.parametrize(
    ("function", "gone"),
    [
        (loss_gradient, ("ones_like", "view", "zeros")),
        (regrouped, ("cat", "split")),
        (regrouped_elsewhere, ()),
        (regrouped_across, ()),
    ],
)
def test_results_stay_and_idle_work_goes(function, gone):
    plain, short = traced(function, simplified=False), traced(function, simplified=True)
    for expected, found in zip(plain(INPUT), short(INPUT), strict=True):
        assert torch.equal(expected, found)
    for name in gone:
        assert not any(name in call for call in calls(short))
    assert (len(calls(short)) < len(calls(plain))) == bool(gone)


def test_what_is_written_in_place_is_made_anew_each_time():
    def summed(rows):
        total = torch.zeros_like(rows)
        total.add_(rows)
        return total

    program = traced(summed, simplified=True)
    assert torch.equal(program(INPUT), INPUT)
    assert torch.equal(program(INPUT), INPUT)


def test_random_draws_are_not_taken_for_constants():
    program = traced(lambda rows: rows + torch.bernoulli(torch.ones_like(rows) / 2), simplified=True)
    torch.manual_seed(0)
    assert len({tuple(program(INPUT).flatten().tolist()) for _ in range(8)}) > 1
