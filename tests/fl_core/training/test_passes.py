"""Simplified programs give what the traced ones gave, bit for bit, each time they are run."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fl_core.models.tracing import trace
from fl_core.training.passes import DIRECT, simplify

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


def sum_of_places(rows):
    total = rows.new_zeros(4, 8)
    for start in range(3):
        total[:, start : start + 6].add_(rows)
    return total[:, 1:7], torch.ones_like(rows) * 2


def written_copy(rows):
    copy = torch.ops.aten.mul.Scalar(rows, 1)
    copy[:, :2].mul_(3)
    return copy, rows + 0.5


def copy_of_what_is_written(rows):
    whole = rows + 0.5
    copy = torch.ops.aten.mul.Scalar(whole, 1)
    whole.view(24).zero_()
    return copy, whole


def pieces_of_what_is_written(rows):
    left, right = rows[:, :2] * 3, rows[:, 2:] + 1
    pieces = torch.cat([left, right], 1).split((2, 4), 1)
    left.zero_()
    return pieces


@pytest.mark.parametrize("function", [sum_of_places, written_copy, copy_of_what_is_written, pieces_of_what_is_written])
def test_what_is_written_in_place_is_made_anew_each_time(function):
    program = traced(function, simplified=True)
    expected = function(INPUT.clone())
    for _ in range(2):
        for wanted, found in zip(expected, program(INPUT.clone()), strict=True):
            assert torch.equal(wanted, found)


def test_what_is_not_written_is_shortened_beside_what_is():
    plain, short = traced(sum_of_places, simplified=False), traced(sum_of_places, simplified=True)
    assert any("ones" in call for call in calls(plain))
    assert not any("ones" in call for call in calls(short))
    assert any("zeros" in call for call in calls(short))


def test_random_draws_are_not_taken_for_constants():
    program = traced(lambda rows: rows + torch.bernoulli(torch.ones_like(rows) / 2), simplified=True)
    torch.manual_seed(0)
    assert len({tuple(program(INPUT).flatten().tolist()) for _ in range(8)}) > 1


class Recorded(TorchDispatchMode):
    """Notes every operator that is called."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


CUBE, SQUARE, BY_ROW = torch.rand(2, 3, 3), torch.rand(3, 3), torch.tensor([[0], [2], [1]])
ARGUMENTS = {
    "_log_softmax": (CUBE, 2, False),
    "_log_softmax_backward_data": (CUBE, CUBE.log_softmax(1), 1, torch.float32),
    "add": (CUBE, SQUARE),
    "addmm": (SQUARE[0], SQUARE, SQUARE),
    "bmm": (CUBE, CUBE),
    "cat": ([CUBE, CUBE], 1),
    "clone": (CUBE,),
    "gather": (SQUARE, 1, BY_ROW),
    "mean": (CUBE, [1, 2]),
    "mm": (SQUARE, SQUARE),
    "mul": (CUBE, SQUARE),
    "permute": (CUBE, [2, 0, 1]),
    "relu": (CUBE - 0.5,),
    "split_with_sizes": (SQUARE, [1, 2], 1),
    "sum": (CUBE, [1], True),
    "transpose": (CUBE, 1, 2),
    "unsqueeze": (CUBE, 1),
    "view": (CUBE, [2, 9]),
}


@pytest.mark.parametrize("operator", DIRECT, ids=str)
def test_a_function_in_the_place_of_an_operator_calls_it(operator):
    arguments = ARGUMENTS[operator.overloadpacket.__name__]
    with Recorded() as recorded:
        found = DIRECT[operator](*arguments)
    assert recorded.operators == [operator]
    torch.testing.assert_close(found, operator(*arguments), atol=0, rtol=0)
