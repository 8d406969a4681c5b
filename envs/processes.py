"""The `VecEnv` face over several cores: blocks of rows, each a `DPilotVecEnv` in a process of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
from typing_extensions import override

from envs.actions import read_actions, require_finite
from envs.core import EnvCore
from envs.knobs import Knob
from envs.listing import Listing
from envs.resets import read_instances, read_seeds
from envs.sb3 import DPilotVecEnv, named_rows
from envs.setting import named_parts
from envs.signals import Feature
from fl_core.base.bounds import count
from fl_core.base.errors import InputError
from fl_core.base.handover import Packed, pack_parts, unpack_parts
from fl_core.base.processes import follow_parent, process_context
from fl_core.base.sources import told
from fl_core.run.ranges import RUNS

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""Method of a block, its arguments and its keyword arguments."""


def usable_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def row_blocks(rows: int, processes: int) -> list[slice]:
    """Divide the rows among the processes: blocks as equal as can be, larger ones first."""
    return [slice(int(own[0]), int(own[-1]) + 1) for own in np.array_split(np.arange(rows), processes)]


class DPilotProcessVecEnv(VecEnv):
    """A batch of federated runs spread over processes. Other arguments are those of `DPilotVecEnv`.

    Row by row it equals a `DPilotVecEnv` of the same settings. The processes start afresh and import the main script:
    keep what it does below `if __name__ == "__main__":`.
    """

    def __init__(self, num_envs: int = 2, processes: int | None = None, **settings: Any):
        """Start the processes.

        Args:
            num_envs: rows.
            processes: how many; None takes one per core, at most one per row.
            **settings: of the environments.

        Raises:
            InputError: a name is unknown, a value is not allowed, or there are more processes than rows.
        """
        RUNS.check("num_envs", num_envs)
        most = count(1, num_envs, "there are no more environments")
        if processes is not None:
            most.check("processes", processes)
        workers = min(num_envs, usable_cores()) if processes is None else processes
        self.blocks = row_blocks(num_envs, workers)
        settings = named_parts(settings)
        self._workers: list[tuple[Any, Connection]] = []
        self._due = [1] * workers  # the spaces, with which each process begins
        try:
            self._workers = [_start(block.stop - block.start, settings) for block in self.blocks]
            spaces = self._receive(self._places)
        except BaseException:
            self.close()
            raise
        super().__init__(num_envs, *spaces[0])

    # ---------------------------------------------------------------- talking to the processes

    def _send(self, calls: Mapping[int, Call]) -> None:
        """Send a call to some processes; where one of them cannot be pickled, none is sent.

        Raises:
            InputError: there is such a call.
            ClosedEnvironmentError: the processes have ended.
        """
        if not self._workers:
            raise gym.error.ClosedEnvironmentError("The environments are closed.")
        try:
            packed = {place: ForkingPickler.dumps(call) for place, call in calls.items()}
        except Exception as error:  # whatever an object's own pickling raises
            raise InputError(f"What was handed in cannot go to another process ({told(error)}).") from error
        for place, content in packed.items():
            while self._due[place]:  # answers that nobody took, as after Ctrl-C
                self._take(place)
            self._due[place] += 1
            with contextlib.suppress(BrokenPipeError):  # that it has died shows where its answer is awaited
                self._workers[place][1].send_bytes(content)

    def _take(self, place: int) -> tuple[Any, Exception | None]:
        """Take the next answer of a process, or the error that it raised."""
        try:
            found: tuple[Any, Exception | None] = self._workers[place][1].recv()
        except (EOFError, ConnectionResetError):
            found = None, RuntimeError(f"Process {place} of the environments has died.")
        self._due[place] -= 1
        return found

    def _receive(self, places: Iterable[int]) -> list[Any]:
        """Collect the workers' answers; an error of one of them is raised after all have answered."""
        found = [self._take(place) for place in places]
        for _, error in found:
            if error is not None:
                raise error
        return [answer for answer, _ in found]

    @property
    def _places(self) -> range:
        return range(len(self._workers))

    def _each(self, name: str, arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call a method in every process at the same time, with arguments for each; returns their results in order."""
        self._send({place: (name, own, {}) for place, own in enumerate(arguments)})
        return self._receive(self._places)

    def _split(self, values: Any) -> list[tuple[Any, ...]]:
        return [(values[block],) for block in self.blocks]

    # ---------------------------------------------------------------- episodes

    def set_instances(self, seeds: Sequence[int]) -> None:
        """Set the instance, by seed, that each row plays again and again from its next reset on.

        Raises:
            InputError: there is not one whole number per row; no row has changed then.
        """
        self._each("set_instances", self._split(read_instances(seeds, self.num_envs)))

    @property
    def core(self) -> EnvCore:
        """Copy of the runs of the first process, for their settings, knobs and signals."""
        return cast("EnvCore", self.get_attr("core", 0)[0])

    @property
    def knobs(self) -> Listing[Knob]:
        """Knob of each action coordinate; prints as a table."""
        return cast("Listing[Knob]", self.get_attr("knobs", 0)[0])

    @property
    def signals(self) -> Listing[Feature]:
        """Feature of each observation entry; prints as a table."""
        return cast("Listing[Feature]", self.get_attr("signals", 0)[0])

    def references(self, seeds: Sequence[int]) -> list[float]:
        """Return the final accuracy of the default clip norm on each instance; the processes take instances in turn."""
        count = len(self._workers)
        found = self._each("references", [(list(seeds[place::count]),) for place in range(count)])
        return [found[index % count][index // count] for index in range(len(seeds))]

    @override
    def reset(self) -> NDArray[np.float32]:
        # Two calls: where one process refuses, no other has begun either.
        self._each("prepare_reset", [(self._seeds[block], self._options[block]) for block in self.blocks])
        parts = self._each("begin_prepared", [() for _ in self._places])
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = [info for _, infos in parts for info in infos]
        return np.concatenate([observations for observations, _ in parts])

    @override
    def step_async(self, actions: NDArray[Any]) -> None:
        coordinates = read_actions(actions, self.num_envs, int(np.prod(self.action_space.shape or ())))
        if not np.isfinite(coordinates).all():  # here, where no row has stepped yet
            require_finite(coordinates, np.ones(self.num_envs, dtype=bool), self.knobs)
        self._send({place: ("step_with", own, {}) for place, own in enumerate(self._split(coordinates))})

    @override
    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        parts = self._receive(self._places)
        observations, rewards, ended, infos, reset_infos = zip(*parts, strict=True)
        self.reset_infos = [info for own in reset_infos for info in own]
        return (
            np.concatenate(observations),
            np.concatenate(rewards),
            np.concatenate(ended),
            [info for own in infos for info in own],
        )

    @override
    def close(self) -> None:
        for process, connection in self._workers:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, OSError):
                connection.send_bytes(b"")  # ends it
            connection.close()
            process.join()
        self._workers = []

    # ---------------------------------------------------------------- what stable-baselines3 asks for besides

    @override
    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return self._at_rows("get_attr", indices, attr_name)

    @override
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        self._at_rows("set_attr", indices, attr_name, value)

    @override
    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        return self._at_rows("env_method", indices, method_name, *method_args, **method_kwargs)

    def _at_rows(self, name: str, indices: VecEnvIndices, *arguments: Any, **named: Any) -> list[Any]:
        """Call a method with indices in the processes of the rows that they name; returns its results in their order.

        Raises:
            IndexError: there is no such row.
        """
        rows = named_rows(indices, self.num_envs)
        by_place = [[row for row in rows if block.start <= row < block.stop] for block in self.blocks]
        asked = [place for place, own in enumerate(by_place) if own]
        calls: dict[int, Call] = {}
        for place in asked:
            own = [row - self.blocks[place].start for row in by_place[place]]
            calls[place] = (name, arguments, {"indices": own, **named})
        self._send(calls)
        found: dict[int, list[Any]] = {row: [] for row in rows}
        for place, results in zip(asked, self._receive(asked), strict=True):
            for row, result in zip(by_place[place], results or by_place[place], strict=True):
                found[row].append(result)
        return [found[row].pop(0) for row in rows]

    @override
    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in named_rows(indices, self.num_envs)]

    @override
    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        return [image for own in self._each("get_images", [() for _ in self._places]) for image in own]


class _Block(DPilotVecEnv):
    """The rows of one process, with calls that need no state between two messages."""

    def prepare_reset(self, seeds: Any, options: Any) -> None:
        self._prepared = self._prepare(list(range(self.num_envs)), read_seeds(seeds, self.num_envs), options)

    def begin_prepared(self) -> tuple[NDArray[np.float32], list[dict[str, Any]]]:
        self._prepared()
        return self._begun(), self.reset_infos

    def step_with(self, actions: NDArray[Any]) -> tuple[Any, ...]:
        return (*self.step(actions), self.reset_infos)


def _start(rows: int, settings: Mapping[str, Any]) -> tuple[Any, Connection]:
    """Start a process with a number of rows."""
    context: Any = process_context(__name__)
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, rows, dict(settings), pack_parts()), daemon=True)
    process.start()
    there.close()
    return process, here


def _serve(connection: Connection, rows: int, settings: Mapping[str, Any], parts: Packed) -> None:
    """Serve as a process: build the rows, send their spaces, and answer calls until told to end."""
    follow_parent()
    torch.set_num_threads(1)  # two processes with two threads each on two cores are many times slower
    unpack_parts(parts)
    try:
        block = _Block(rows, **settings)
        connection.send(((block.observation_space, block.action_space), None))
    except Exception as error:
        connection.send((None, _portable(error)))
        return
    with contextlib.suppress(EOFError):  # the main process is gone
        while content := connection.recv_bytes():
            connection.send_bytes(_answer(block, content))


def _answer(block: _Block, content: bytes) -> Any:
    """Do what a message asks; returns the answer's pickle, or that of the error on the way to it."""
    try:
        name, arguments, named = ForkingPickler.loads(content)
        return ForkingPickler.dumps((getattr(block, name)(*arguments, **named), None))
    except Exception as error:
        return ForkingPickler.dumps((None, _portable(error)))


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent: itself, or its words where its class cannot be rebuilt from them."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:  # whatever an error's own pickling raises
        return RuntimeError(told(error))
    return error
