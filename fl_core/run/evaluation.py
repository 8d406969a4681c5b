"""Accuracy and loss of the server's models and of the clients' own models."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl_core.base.transfers import to_device
from fl_core.data.datasets import Dataset
from fl_core.data.normalization import Normalization
from fl_core.run.local_data import ClientTables
from fl_core.training.executors import Executor
from fl_core.training.images import Images

SUBSET_SEED = 0
EVALUATED = frozenset(
    {
        "global_accuracy",
        "global_loss",
        "personal_accuracy",
        "personal_accuracy_error",
        "personal_accuracy_spread",
        "personal_loss",
        "personal_loss_spread",
        "trimmed_accuracy",
        "trimmed_loss",
    }
)
"""Figures that only an evaluation knows, not the round itself."""


class Evaluation:
    """Scores the server's models on the pooled test set, and the clients' models on test samples of theirs.

    Attributes:
        train_images: the training images, of which the clients' hold-outs are some.
    """

    def __init__(
        self,
        executor: Executor,
        dataset: Dataset,
        samples: int,
        mode: str = "holdout",
        normalization: Normalization | None = None,
        aside: bool = False,
    ):
        """Choose the test images: all, or a fixed random subset of `samples`.

        Args:
            executor: who computes the scores.
            dataset: images and labels.
            samples: how many of the pooled test images are used; 0 takes all.
            mode: what clients' models are tested on, one of `fl_core.run.choices.EVALUATIONS`.
            normalization: constants that images are normalised with.
            aside: True if the images are on the host, beside the device of the labels.
        """
        self._executor, self._mode, self._classes = executor, mode, dataset.classes
        how = (dataset.scale, normalization, aside)
        self.train_images = Images(dataset.train_images, dataset.train_labels, *how)
        self._test = Images(dataset.test_images, dataset.test_labels, *how)
        index = torch.arange(len(self._test))
        if 0 < samples < len(index):
            index = torch.randperm(len(index), generator=torch.Generator().manual_seed(SUBSET_SEED))[:samples]
        self._index = index.to(dataset.test_images.device).unsqueeze(0)

    def pooled(self, models: Tensor) -> dict[str, Tensor]:
        """Figures `[runs]` of the server models `[runs, size]` on the pooled test set."""
        hits, losses = self._executor.score(models, self._index, self._test)
        return {"global_accuracy": hits.mean(-1), "global_loss": losses.mean(-1)}

    def personal(self, models: Tensor, tables: ClientTables, tested: Tensor, mode: str = "") -> dict[str, Tensor]:
        """Figures `[runs]` of clients' models on the clients' test samples.

        Args:
            models: `[runs, tested, size]`, or `[runs, size]` where all clients of a run have the same.
            tables: the clients' samples, on the side of the images, as is the next.
            tested: clients of each run that are tested, all or a sample of them `[runs, tested]`.
            mode: what to test on in place of the usual, one of `fl_core.run.choices.EVALUATIONS`.
        """
        mode = mode or self._mode
        scores = self._on_holdouts(models, tables, tested) if mode == "holdout" else None
        accuracy, loss = scores or self._pooled(models, tables, tested, mode)
        return {
            "personal_accuracy": accuracy.mean(-1),
            "personal_accuracy_error": sampling_error(accuracy, tables.train.count.shape[-1]),
            "personal_accuracy_spread": accuracy.std(-1, correction=0),
            "personal_loss": loss.mean(-1),
            "personal_loss_spread": loss.std(-1, correction=0),
            "trimmed_accuracy": trimmed_mean(accuracy),
            "trimmed_loss": trimmed_mean(loss),
        }

    def _on_holdouts(self, models: Tensor, tables: ClientTables, tested: Tensor) -> tuple[Tensor, Tensor]:
        """Accuracy and loss `[runs, tested]` on the clients' own hold-outs."""
        index, counts = tables.test.padded(*placed_rows(tested))
        if models.dim() == 3:
            accuracy, loss = self.holdout(models.flatten(0, 1), index, counts)
            return accuracy.view(tested.shape), loss.view(tested.shape)
        hits, losses = self._executor.score(models, index.view(len(tested), -1), self.train_images)
        counts = to_device(counts, models.device)
        accuracy, loss = (_counted_mean(one.view(index.shape), counts).view(tested.shape) for one in (hits, losses))
        return accuracy, loss

    def holdout(self, models: Tensor, index: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Accuracy and loss `[rows]` of models `[rows, size]` on the first `counts` samples of each row of `index`."""
        hits, losses = self._executor.score(models, index, self.train_images)
        counts = to_device(counts, models.device)
        return _counted_mean(hits, counts), _counted_mean(losses, counts)

    def _pooled(self, models: Tensor, tables: ClientTables, tested: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        """Accuracy and loss `[runs, tested]` on the pooled test images, all or those of the client's classes."""
        runs, clients = tested.shape
        scores = self._executor.score(models.flatten(0, -2), self._index, self._test)
        weights = torch.ones(runs, clients, self._index.shape[1], device=models.device)
        if mode == "classes":
            labels = self._test.labels(self._index[0])
            weights = self._holds(tables, tested)[:, :, labels].to(weights.dtype)
            # Of a client's classes none may be among a small subset of test images; it then counts with all of them.
            weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)
        accuracy, loss = (
            (score.view(runs, -1, score.shape[-1]) * weights).sum(-1) / weights.sum(-1) for score in scores
        )
        return accuracy, loss

    def _holds(self, tables: ClientTables, tested: Tensor) -> Tensor:
        """Mark the classes that each client has training samples of `[runs, tested, classes]` (bool)."""
        labels = self.train_images.labels(tables.train.padded(*placed_rows(tested))[0])
        holds = torch.zeros(len(labels), self._classes, dtype=torch.bool, device=labels.device)
        return holds.scatter(-1, labels, torch.ones_like(labels, dtype=torch.bool)).view(*tested.shape, -1)


def _counted_mean(values: Tensor, counts: Tensor) -> Tensor:
    """Mean of the first `counts` entries of `[..., longest]`."""
    counted = torch.arange(values.shape[-1], device=values.device) < counts.unsqueeze(-1)
    return torch.where(counted, values, 0.0).sum(-1) / counts


def placed_rows(tested: Tensor) -> tuple[Tensor, Tensor]:
    """Run and client of each of the tested `[runs, tested]`, one after the other `[rows]`."""
    run = torch.arange(len(tested), device=tested.device).unsqueeze(-1).expand_as(tested)
    return run.flatten(), tested.flatten()


def sampling_error(values: Tensor, population: int) -> Tensor:
    """Estimate the standard error of the mean of values `[runs, tested]` of clients drawn without replacement.

    Args:
        values: of the clients that are tested.
        population: clients there are; the error is 0 if all are tested (the finite population's correction).
    """
    tested = values.shape[-1]
    if tested == population:
        return torch.zeros_like(values[..., 0])
    correction = (1 - tested / population) / tested
    return values.std(-1, correction=1 if tested > 1 else 0) * math.sqrt(correction)


def trimmed_mean(values: Tensor) -> Tensor:
    """Mean of `[runs, clients]` over the clients between the 10th and 80th percentile, `[runs]` (ACDP-pFSD)."""
    clients = values.shape[-1]
    first, last = math.floor(0.1 * clients), max(1, math.floor(0.8 * clients))
    return values.sort(-1).values[..., first:last].mean(-1)
