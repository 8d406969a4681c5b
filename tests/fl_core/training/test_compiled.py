"""Programs by torch.compile: as the vectorized executor's, and refused where nothing can compile them."""

from __future__ import annotations

import pytest
import torch
from torch._inductor import config as inductor

from fl_core.base.errors import InputError
from fl_core.run.config import FederationConfig
from fl_core.run.federation import Federation
from fl_core.run.plan import RoundPlan
from fl_core.training import compiled, programs

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALL = {"clients": 6, "rounds": 3, "local_steps": 2, "delta": 0.01}


def test_rounds_equal_those_of_the_vectorized_executor() -> None:
    """One shape is compiled, with momentum, whose averages must outlive the step that they came from."""
    found = {}
    for executor in ("vectorized", "compiled"):
        federation = Federation(FederationConfig(executor=executor, momentum=0.5, **SMALL), 2)  # type: ignore[arg-type]
        for _ in range(2):
            report = federation.run_round(RoundPlan.constant(2), evaluate=True)
        found[executor] = federation.server, report.figures["global_loss"]
        assert federation.executor.choice == f"{executor} (as asked)"
    torch.testing.assert_close(found["compiled"][0], found["vectorized"][0], atol=1e-5, rtol=1e-4)
    assert found["compiled"][1] == pytest.approx(found["vectorized"][1], rel=1e-4)
    assert any(key[-1] is True for key in programs._programs)


def test_a_machine_without_a_compiler_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(
        InputError, match=r"executor is 'compiled', but torch.compile finds no C\+\+ compiler .*sequent"
    ):
        Federation(FederationConfig(executor="compiled", **SMALL))  # type: ignore[arg-type]


def test_a_gpu_without_triton_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(InputError, match=r"executor is 'compiled', but torch\.compile finds no Triton for this GPU; "):
        compiled.require_compiler(GPU)


def test_results_of_a_cuda_graph_are_copied_out_of_the_memory_that_it_writes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, asked = torch.zeros(2), {}

    def graphed(program: object, **options: object) -> object:
        asked.update(options)
        return lambda number: ((memory.fill_(number),), memory)

    monkeypatch.setattr(torch, "compile", graphed)
    run = compiled.compiled(lambda number: ((), memory), GPU)
    (first,), losses = run(1.0)
    run(2.0)
    assert first.tolist() == losses.tolist() == [1, 1]
    assert asked == {"dynamic": False, "mode": "reduce-overhead"}
