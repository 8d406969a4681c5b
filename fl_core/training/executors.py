"""Executors of local training: all clients stacked in one tensor program, or one after the other.

Both trace the gradient of a client's loss to plain tensor operations once per shape and replay it, which saves most
of autograd's and the module's bookkeeping on small models. `vectorized` maps the program over stacked clients (of all
runs) and wins where a client's step is too small to fill the processor; `sequential` uses the layouts and kernels
that convolutions of one client like, and wins on larger ones. `compiled` is `vectorized` with its programs compiled,
which takes long for each shape and so is never chosen by a measurement. They agree to float tolerance.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from fl_core.base.errors import require_name
from fl_core.base.memory import is_out_of_memory, stacking_bytes
from fl_core.models.model import Model
from fl_core.recipes.objective import Update
from fl_core.recipes.terms import Context
from fl_core.training.chunks import chunk_size, row_bytes
from fl_core.training.images import Images
from fl_core.training.measured import EXECUTORS, measured
from fl_core.training.optimizers import PieceOptimizer
from fl_core.training.programs import Program, find_program, stretch
from fl_core.training.work import LocalWork, read, take

EVALUATION_BATCH = 500
"""Most images of a model that are tested at a time."""
_TIMING_REPEATS = 3
_STACKED = ("vectorized", "compiled")


class Executor:
    """Runs local training and evaluation of a model, by one of `EXECUTORS`.

    Attributes:
        kind: `vectorized`, `sequential` or `compiled`; `auto` until the first training has timed the first two.
        choice: the kind in words, with the timings where `auto` chose it.
    """

    def __init__(self, model: Model, kind: str = "auto", memory_limit: int = 0):
        """Prepare an executor.

        Args:
            model: the network.
            kind: `vectorized`, `sequential`, `compiled`, or `auto` to time the first two on the first shapes met.
            memory_limit: bytes that a chunk of stacked clients may take, about; 0 takes the device's default.
        """
        require_name("executor", kind, EXECUTORS)
        self._model = model
        self.kind = kind
        self._memory_limit = memory_limit
        self.choice = "not run yet" if kind == "auto" else f"{kind} (as asked)"

    def resume_as(self, kind: str) -> None:
        """Take over the kind that an earlier process chose, where this one would time both anew."""
        if self.kind == "auto" and kind != "auto":
            require_name("executor of the saved run", kind, EXECUTORS)
            self.kind, self.choice = kind, f"{kind} (as the saved run)"

    def train(self, work: LocalWork, images: Images) -> tuple[Tensor, Tensor]:
        """Train all clients through their phases.

        Where memory does not suffice, clients are stacked in half as many, once, from then on: training reads its work
        and leaves it as it is, so that it can be done again.

        Returns:
            The trained parameters `[n, size]` and each client's mean training loss `[n]`.
        """
        if len(work.parameters) == 0:
            return work.parameters, work.parameters.new_zeros(0)
        try:
            return self._train(work, images)
        except (MemoryError, RuntimeError) as error:
            if self.kind == "sequential" or not is_out_of_memory(error) or not self._halve(work):
                raise
        return self._train(work, images)  # out of the clause above, whose error keeps the tensors of the first attempt

    def _halve(self, work: LocalWork) -> bool:
        """Lower the memory limit to that of half of the rows that are stacked; False if that is one."""
        rows = chunk_size(self._model, work, self.memory_limit(work.parameters.device))
        if rows > 1:
            self._memory_limit = rows // 2 * row_bytes(self._model, work)
        return rows > 1

    def _train(self, work: LocalWork, images: Images) -> tuple[Tensor, Tensor]:
        """Train all clients in chunks that the memory limit holds."""
        if self.kind == "auto":
            self.kind, self.choice = _measure(self._model, work, images, self.memory_limit(work.parameters.device))
        if self.kind == "sequential":
            return _by_chunks(self._model, work, images, 1)
        work = replace(work, compiled=self.kind == "compiled")
        limit = self.memory_limit(work.parameters.device)
        return _by_chunks(self._model, work, images, chunk_size(self._model, work, limit))

    def score(self, parameters: Tensor, index: Tensor, images: Images) -> tuple[Tensor, Tensor]:
        """Test n models on images.

        Args:
            parameters: `[n, size]`.
            index: positions of each model's images `[n, length]`, or `[1, length]` where all share them.
            images: image set that the positions index.

        Returns:
            Hits (1 where the prediction is right) and cross-entropies, `[n, length]` each.
        """
        if not len(parameters):
            nothing = parameters.new_zeros(0, index.shape[1])
            return nothing, nothing
        score = self._score_stacked if self.kind in _STACKED and len(parameters) > 1 else self._score_rows
        pieces = [score(parameters, piece, images) for piece in index.split(EVALUATION_BATCH, dim=1)]
        hits, losses = zip(*pieces, strict=True)
        return torch.cat(hits, dim=1), torch.cat(losses, dim=1)

    def memory_limit(self, device: torch.device) -> int:
        """Return the bytes that stacked clients may take on a device, about."""
        self._memory_limit = self._memory_limit or stacking_bytes(device)
        return self._memory_limit

    @torch.no_grad()
    def _score_rows(self, parameters: Tensor, index: Tensor, images: Images) -> tuple[Tensor, Tensor]:
        """Compute hits and losses `[n, length]`, one model at a time."""
        shared = images.read(index[0]) if len(index) == 1 else None
        scores = []
        for row, model in enumerate(parameters):
            inputs, labels = shared if shared is not None else images.read(index[row])
            logits = self._model.logits_alone(model, inputs)
            scores.append((_hits(logits, labels), functional.cross_entropy(logits, labels, reduction="none")))
        hits, losses = zip(*scores, strict=True)
        return torch.stack(hits), torch.stack(losses)

    @torch.no_grad()
    def _score_stacked(self, parameters: Tensor, index: Tensor, images: Images) -> tuple[Tensor, Tensor]:
        """Compute hits and losses `[n, length]` of stacked models, in chunks that fit the memory limit."""
        limit = self.memory_limit(parameters.device)
        per_model = 4 * (self._model.size + index.shape[1] * self._model.activations)
        chunk = max(1, limit // per_model)
        if len(index) == 1:
            inputs, labels = images.read(index[0])
            logits = torch.cat(
                [vmap(self._model.logits, (0, None))(models, inputs) for models in parameters.split(chunk)]
            )
            labels = labels.expand(len(parameters), -1)
        else:
            pieces = []
            for models, positions in zip(parameters.split(chunk), index.split(chunk), strict=True):
                pieces.append(vmap(self._model.logits)(models, images.read(positions)[0]))
            logits, labels = torch.cat(pieces), images.labels(index)
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return _hits(logits, labels), losses.view(labels.shape)


def _hits(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(-1) == labels).to(torch.float32)


def _by_chunks(model: Model, work: LocalWork, images: Images, size: int) -> tuple[Tensor, Tensor]:
    """Train `size` rows at a time; the last chunk is padded by repeating rows, whose results are dropped."""
    count = len(work.parameters)
    if size == count:
        return _train_chunk(model, work, images)
    results = []
    for start in range(0, count, size):
        results.append(_train_chunk(model, take(work, range(start, start + size)), images))
    parameters, losses = zip(*results, strict=True)
    return torch.cat(parameters)[:count], torch.cat(losses)[:count]


@torch.no_grad()
def _train_chunk(model: Model, work: LocalWork, images: Images) -> tuple[Tensor, Tensor]:
    """Train rows that fit into memory together."""
    parameters = work.parameters.clone()  # updated in place from here on
    rate = work.learning_rate.unsqueeze(-1)
    losses, weights = torch.zeros_like(work.learning_rate), torch.zeros_like(work.learning_rate)
    keys_of: tuple[Tensor | None, ...] = work.keys or (None,) * len(work.phases)
    for phase, batches, active, keys in zip(work.phases, work.batches, work.active, keys_of, strict=True):
        programs: list[Program] = []
        movers: list[PieceOptimizer] = []
        context = {name: value for name, value in work.context.items() if name != "teacher"}
        if "start" in context:  # an earlier phase's change is not this one's
            context["start"] = parameters.clone()
        taught = _teacher_logits(model, work, batches, images, keys)
        for step in range(batches.shape[1]):
            words = None if keys is None else keys[:, step]
            inputs, labels = read(work, images, batches[:, step], words)
            if taught is not None:
                context["teacher_logits"] = taught[:, step]
            works = None if active is None else active[:, step]
            dropping = words if work.drops else None
            if dropping is not None:
                context["dropped"] = model.unit_factors(dropping, 0)
            if not programs:  # the shapes are known from the first minibatch on, and stay
                sample = (parameters, inputs, labels, context)
                # SGD takes one operation per piece; Adam's ten or so would be repeated for each.
                apart = work.optimizer.name == "sgd"
                programs = [
                    find_program(model, work.view, update, *sample, apart, work.compiled) for update in phase.updates
                ]
                masks = [
                    _step_mask(update, stretch(model, update, parameters), work.context) for update in phase.updates
                ]
                movers = [
                    PieceOptimizer(work.optimizer, parameters, program.spans, mask)
                    for program, mask in zip(programs, masks, strict=True)
                ]
            for number, (program, mover) in enumerate(zip(programs, movers, strict=True)):
                if dropping is not None and number:  # every forward pass drops other units
                    context["dropped"] = model.unit_factors(dropping, number)
                gradient, loss = program.run(parameters, inputs, labels, context)
                mover.apply_(gradient, rate, works)
            if phase.clamped:
                _clamp_(parameters, context)
            share = torch.ones_like(losses) if works is None else works.to(losses.dtype)
            losses, weights = losses + share * loss, weights + share
    return parameters, losses / weights.clamp_min(1)


def _teacher_logits(
    model: Model, work: LocalWork, batches: Tensor, images: Images, keys: Tensor | None
) -> Tensor | None:
    """Compute the teachers' logits on all minibatches of a phase `[n, steps, batch, classes]`; None without a teacher.

    A teacher does not change during training, so its logits are taken at once, which costs half of as many steps.
    """
    if "teacher" not in work.context:
        return None
    teacher, pieces = work.context["teacher"], []
    at_once = max(1, EVALUATION_BATCH // batches.shape[2])
    for first in range(0, batches.shape[1], at_once):
        some = batches[:, first : first + at_once]
        words = None if keys is None else keys[:, first : first + at_once].flatten(1)
        inputs, _ = read(work, images, some.flatten(1), words)
        if len(teacher) == 1:
            logits = model.logits_alone(teacher[0], inputs[0]).unsqueeze(0)
        else:
            logits = vmap(model.logits)(teacher, inputs)
        pieces.append(logits.view(*some.shape, -1))
    return torch.cat(pieces, dim=1)


def _step_mask(update: Update, span: slice, context: Context) -> Tensor | None:
    """Build the mask `[n, stretch]` of the coordinates that an update moves; None for all of the stretch."""
    if not update.only:
        return None
    personal = context["personal"][:, span]
    return personal if update.only == "personal" else 1 - personal


def _clamp_(parameters: Tensor, context: Context) -> None:
    """Clamp every coordinate, in place, to within the radius around the start."""
    start, radius = context["start"], context["radius"].unsqueeze(-1)
    torch.minimum(torch.maximum(parameters, start - radius, out=parameters), start + radius, out=parameters)


def _measure(model: Model, work: LocalWork, images: Images, memory_limit: int) -> tuple[str, str]:
    """Time a step of each executor on the real shapes."""
    stacked = chunk_size(model, work, memory_limit)
    network = (model.name, model.shape, model.classes)
    shapes = (*network, stacked, work.batches[0].shape[2], work.phases, work.view, str(work.parameters.device))

    def measure() -> tuple[str, str]:
        seconds = {
            "vectorized": _seconds_per_step(model, work, images, stacked) / stacked,
            "sequential": _seconds_per_step(model, work, images, 1),
        }
        best = min(seconds, key=lambda kind: seconds[kind])
        milliseconds = {kind: 1000 * value for kind, value in seconds.items()}
        return best, (
            f"{best} (measured: vectorized {milliseconds['vectorized']:.3f} ms, sequential "
            f"{milliseconds['sequential']:.3f} ms per client and step, {stacked} clients stacked)"
        )

    return measured(repr(shapes), measure)


def _seconds_per_step(model: Model, work: LocalWork, images: Images, size: int) -> float:
    """Time single steps of `size` stacked rows and return the fastest, after one that traces the program."""
    sample = take(work, range(size))
    one_step = replace(
        sample,
        batches=tuple(batches[:, :1] for batches in sample.batches),
        active=tuple(None for _ in sample.active),
        keys=tuple(keys[:, :1] for keys in sample.keys),
    )

    on_cpu = work.parameters.device.type == "cpu"
    # A busy machine stops the longer step more often: where one thread does all, its own time tells them apart.
    clock = time.thread_time if on_cpu and torch.get_num_threads() == 1 else time.perf_counter

    def once() -> float:
        start = clock()
        _train_chunk(model, one_step, images)
        if not on_cpu:
            torch.cuda.synchronize(work.parameters.device)
        return clock() - start

    once()
    return min(once() for _ in range(_TIMING_REPEATS))
