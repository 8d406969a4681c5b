import pytest
import torch

from fl_core.base.errors import InputError
from fl_core.training.optimizers import Optimizer, OptimizerState

CASES = [
    (Optimizer("sgd"), lambda p: torch.optim.SGD(p, 0.1)),
    (Optimizer("sgd", momentum=0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
    (Optimizer("adam", weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1)),
]


@pytest.mark.parametrize(("settings", "reference"), CASES)
def test_steps_follow_pytorch(settings, reference):
    torch.manual_seed(0)
    start, gradients = torch.randn(3, 5), torch.randn(6, 3, 5)
    expected = []
    for row in range(3):
        parameter = torch.nn.Parameter(start[row].clone())
        optimizer = reference([parameter])
        for gradient in gradients[:, row]:
            parameter.grad = gradient.clone()
            optimizer.step()
        expected.append(parameter.detach())
    state, parameters = OptimizerState(settings), start.clone()
    for gradient in gradients:
        state.apply_(parameters, gradient, torch.full((3, 1), 0.1))
    torch.testing.assert_close(parameters, torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_each_row_may_have_its_own_learning_rate():
    moved = OptimizerState(Optimizer()).apply_(torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([[0.1], [0.5]]))
    torch.testing.assert_close(moved, torch.tensor([[-0.1] * 3, [-0.5] * 3]))


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "sdg"},
        {"momentum": 1.0},
        {"name": "adam", "momentum": 0.5},
        {"weight_decay": -1.0},
        {"adam_epsilon": 0.0},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InputError):
        Optimizer(**settings)
