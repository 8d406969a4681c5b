"""A slow reference of the papers' methods: one client, one minibatch, one coordinate rule after the other.

Written from the papers' equations in float64, on the small mlp. It shares with the code under test the named streams,
the partition and the order of a client's minibatches, each of which has tests of its own; and the random signs of the
Jacobian risk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fl_core.base.streams import normal_draws
from fl_core.run.config import FederationConfig
from tests.fl_core.plain import BODY, HEAD_WORK, PlainRun, mask_draws, positions_of

INPUTS, HIDDEN, CLASSES = 64, 32, 10
SIZE = BODY + HIDDEN * CLASSES + CLASSES
LAYERS = (slice(0, BODY), slice(BODY, SIZE))
TENSORS = (
    slice(0, INPUTS * HIDDEN),
    slice(INPUTS * HIDDEN, BODY),
    slice(BODY, BODY + HIDDEN * CLASSES),
    slice(BODY + HIDDEN * CLASSES, SIZE),
)
Loss = Callable[[Tensor], Tensor]


def logits_of(vector: Tensor, images: Tensor) -> Tensor:
    """relu(x W₁ + b₁) W₂ + b₂."""
    first, bias, second, last = (vector[piece] for piece in TENSORS)
    hidden = torch.relu(images @ first.view(INPUTS, HIDDEN) + bias)
    return hidden @ second.view(HIDDEN, CLASSES) + last


def gradient(loss: Loss, at: Tensor) -> Tensor:
    """∂loss/∂vector."""
    leaf = at.detach().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0]


def length(vector: Tensor) -> Tensor:
    """Euclidean norm; at 0 a constant."""
    return vector.norm() if float(vector.detach().norm()) else torch.zeros((), dtype=vector.dtype)


class Descent:
    """SGD with momentum, or Adam with its usual constants, of one vector."""

    def __init__(self, config: FederationConfig) -> None:
        self.config, self.steps = config, 0
        self.first: Any = 0.0
        self.second: Any = 0.0

    def step(self, vector: Tensor, direction: Tensor) -> Tensor:
        """The vector after a step against a gradient."""
        self.steps += 1
        if self.config.optimizer == "sgd":
            self.first = self.config.momentum * self.first + direction
            return vector - self.config.learning_rate * self.first
        self.first = 0.9 * self.first + 0.1 * direction
        self.second = 0.999 * self.second + 0.001 * direction**2
        mean, square = self.first / (1 - 0.9**self.steps), self.second / (1 - 0.999**self.steps)
        return vector - self.config.learning_rate * mean / (square.sqrt() + 1e-8)


def top(scores: Tensor, count: int) -> Tensor:
    """Mask of the largest scores, by a full sort."""
    mask = torch.zeros_like(scores)
    mask[torch.argsort(scores, descending=True, stable=True)[:count]] = 1
    return mask


class PlainMethod:
    """One run of a method; what clients keep lies in dicts by client."""

    part: slice | None = None
    """The part of the model that stays on the client."""

    def __init__(self, config: FederationConfig, seed: int, initial: Tensor) -> None:
        self.base = PlainRun(config, seed, initial)
        self.config, self.seed, self.published = config, seed, config.guarantee == "as-published"
        self.server = initial.double().clone()
        clients = range(config.clients)
        self.own = {i: self.server.clone() for i in clients}
        self.local = {i: self.server[self.part].clone() for i in clients} if self.part else {}
        self.seen, self.risk = dict.fromkeys(clients, False), dict.fromkeys(clients, 0.0)
        self.clip, self.sigma, self.m = 0.0, 0.0, 0
        self.cohort: list[int] = []
        self.information: dict[int, tuple[Tensor, Tensor]] = {}
        data = self.base.data
        self.images, self.labels = data.train_images.double().flatten(1) / 16, data.train_labels
        self.start()

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.base.round

    def start(self) -> None:
        """State of the method's own."""

    # ------------------------------------------------------------ local work

    def samples(self, client: int) -> Tensor:
        """The client's training samples."""
        return self.base.index.train.of(client)

    def batches(self, client: int, stream: str, *work: int) -> list[list[Tensor]]:
        """Minibatches of each phase, `work` times the configured steps long."""
        lengths = [self.config.local_steps * times for times in work]
        own = self.samples(client)
        place = (self.seed, stream, self.round, client)
        rows = list(own[positions_of(*place, len(own), sum(lengths), self.config.batch_size)])
        return [rows[sum(lengths[:phase]) : sum(lengths[: phase + 1])] for phase in range(len(work))]

    def cross_entropy(self, vector: Tensor, batch: Tensor) -> Tensor:
        """Of a minibatch."""
        return functional.cross_entropy(logits_of(vector, self.images[batch]), self.labels[batch])

    def descend(self, vector: Tensor, batches: list[Tensor], loss: Any = None, where: Any = 1.0) -> Tensor:
        """A step per minibatch on the coordinates that `where` marks."""
        loss, descent = loss or self.cross_entropy, Descent(self.config)
        for batch in batches:
            vector = descent.step(vector, where * gradient(lambda at, rows=batch: loss(at, rows), vector))
        return vector

    def composed(self, client: int) -> Tensor:
        """The server's model with the client's part in its place."""
        model = self.server.clone()
        if self.part is not None:
            model[self.part] = self.local[client]
        return model

    def client(self, client: int) -> Tensor:
        """One client's round; returns its update, zero where it uploads nothing."""
        begin = self.composed(client)
        (batches,) = self.batches(client, "minibatch", 1)
        end = self.descend(begin, batches)
        return self.keep(client, begin, end)

    def keep(self, client: int, begin: Tensor, end: Tensor) -> Tensor:
        """Store what stays, return what is uploaded."""
        update = end - begin
        if self.part is not None:
            self.local[client] = end[self.part].clone()
            update[self.part] = 0
        self.own[client], self.seen[client] = end.clone(), True
        return update

    # ------------------------------------------------------------ the round

    def step(self, clip: float, rate: float, sigma: float) -> None:
        """One round."""
        self.clip, self.sigma, self.cohort = clip, sigma, self.base.cohort()
        self.m = len(self.cohort)
        updates = {client: self.client(client) for client in self.cohort}
        self.server = self.server + rate * self.release(updates)
        self.base.round += 1

    def expected(self) -> float:
        """The public size of the cohort."""
        return self.config.sampling_rate * self.config.clients

    def clipped(self, update: Tensor, norm: float) -> Tensor:
        """The update with at most this norm."""
        return update * min(1.0, norm / max(float(update.norm()), 1e-30))

    def normals(self, *shape: int) -> Tensor:
        """The round's noise draws."""
        return normal_draws(shape, self.seed, "noise", self.round)

    def noised_support(self) -> Tensor:
        """1 where the sum carries noise."""
        support = torch.ones(SIZE, dtype=torch.float64)
        if self.part is not None:
            support[self.part] = 0
        return support

    def release(self, updates: dict[int, Tensor]) -> Tensor:
        """The mean update: clip by norm, sum, central noise, divide."""
        total = torch.zeros(SIZE, dtype=torch.float64)
        for client in updates:
            total += self.clipped(updates[client], self.clip)
        total += self.clip * self.sigma * self.normals(SIZE) * self.noised_support()
        return total / self.divisor()

    def divisor(self) -> float:
        """Of the sum: public, but for the papers' number of participants."""
        return max(1, self.m) if self.published else self.expected()

    # ------------------------------------------------------------ tests

    def tested(self, client: int) -> Tensor:
        """The model that a client is tested with."""
        return self.composed(client)

    def personal_loss(self) -> float:
        """Mean over clients of the cross-entropy on their hold-outs."""
        index, losses = self.base.index, []
        for client in range(self.config.clients):
            rows = index.test.of(client)
            losses.append(self.cross_entropy(self.tested(client), rows).item())
        return float(np.mean(losses))


# ---------------------------------------------------------------- what several methods do


def fisher(method: PlainMethod, client: int, vector: Tensor) -> Tensor:
    """Diagonal empirical Fisher information, sample by sample, stretched to [0, 1] within each tensor."""
    known = method.information.get(client)
    if known is not None and torch.equal(known[0], vector):
        return known[1]
    rows = method.samples(client)
    total = torch.zeros(SIZE, dtype=torch.float64)
    for row in rows:
        total += gradient(lambda at, one=row: method.cross_entropy(at, one[None]), vector) ** 2
    information = total / len(rows)
    for piece in TENSORS:
        low, high = information[piece].min(), information[piece].max()
        information[piece] = (information[piece] - low) / (high - low) if high > low else 0.0
    method.information[client] = (vector.clone(), information)
    return information


class LocalHead(PlainMethod):
    """The head on a frozen body, tested there; then the body under the head."""

    part = LAYERS[1]

    def start(self) -> None:
        """Masks of the two phases."""
        self.head, self.body = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)
        self.head[LAYERS[1]], self.body[LAYERS[0]] = 1, 1

    def mask(self, vector: Tensor) -> Tensor:
        """Coordinates that a forward pass uses."""
        return torch.ones_like(vector)

    def masked_loss(self, vector: Tensor, batch: Tensor) -> Tensor:
        """Cross-entropy under the mask, which has no gradient of its own."""
        return self.cross_entropy(vector * self.mask(vector.detach()), batch)

    def body_loss(self, vector: Tensor, batch: Tensor, begin: Tensor) -> Tensor:
        """Of the second phase."""
        return self.masked_loss(vector, batch)

    def client(self, client: int) -> Tensor:
        """Both phases."""
        begin = self.composed(client)
        first, second = self.batches(client, "minibatch", HEAD_WORK, 1)
        tuned = self.descend(begin, first, self.masked_loss, self.head)
        end = self.descend(tuned, second, lambda at, rows: self.body_loss(at, rows, tuned), self.body)
        return self.keep(client, begin, end)

    def tested(self, client: int) -> Tensor:
        """After the first phase of the round to come."""
        (batches,) = self.batches(client, "evaluation", HEAD_WORK)
        tuned = self.descend(self.composed(client), batches, self.masked_loss, self.head)
        return tuned * self.mask(tuned)


class FisherPersonal(PlainMethod):
    """Coordinates of high Fisher information keep the client's values; two alternating steps (FedDPA eq. 4-11)."""

    threshold, personal_weight, shared_weight = 0.1, 0.05, 0.1

    def personal(self, client: int) -> Tensor:
        """Mask of the personal coordinates."""
        return (fisher(self, client, self.own[client]) >= self.threshold).double()

    def after_step(self, vector: Tensor, begin: Tensor) -> Tensor:
        """Close a minibatch: by default nothing more happens."""
        return vector

    def alternate(self, begin: Tensor, personal: Tensor, batches: list[Tensor]) -> Tensor:
        """Per minibatch a step on the personal coordinates, then one on the shared ones, each with its optimizer."""
        own, common = Descent(self.config), Descent(self.config)
        vector = begin
        for batch in batches:

            def personal_loss(at: Tensor, rows: Tensor = batch) -> Tensor:
                return self.cross_entropy(at, rows) + self.personal_weight / 2 * length((at - begin) * personal)

            vector = own.step(vector, personal * gradient(personal_loss, vector))

            def shared_loss(at: Tensor, rows: Tensor = batch) -> Tensor:
                excess = length((at - begin) * (1 - personal)) - self.clip
                return self.cross_entropy(at, rows) + self.shared_weight / 2 * excess.abs()

            vector = common.step(vector, (1 - personal) * gradient(shared_loss, vector))
            vector = self.after_step(vector, begin)
        return vector

    def client(self, client: int) -> Tensor:
        """The whole update is uploaded, personal coordinates and all."""
        personal = self.personal(client)
        begin = torch.where(personal > 0, self.own[client], self.server)
        (batches,) = self.batches(client, "minibatch", 1)
        end = self.alternate(begin, personal, batches)
        self.own[client] = end.clone()
        return end - begin

    def tested(self, client: int) -> Tensor:
        """The local model as it was after training."""
        return self.own[client]


class FedDPAProgram(FisherPersonal):
    """The authors' program: a pass on the personal coordinates, one on the shared, both tied to the server's model."""

    personal_weight, shared_weight = 0.1, 0.05

    def apart(self, at: Tensor) -> Tensor:
        """Norms of the tensors' differences from the received model, added up."""
        return sum((length((at - self.server)[piece]) for piece in TENSORS), start=torch.zeros((), dtype=at.dtype))

    def client(self, client: int) -> Tensor:
        """The update is the difference from the received model."""
        personal = self.personal(client)
        vector = torch.where(personal > 0, self.own[client], self.server)
        first, second = self.batches(client, "minibatch", 1, 1)

        def personal_loss(at: Tensor, rows: Tensor) -> Tensor:
            return self.cross_entropy(at, rows) + self.personal_weight / 2 * self.apart(at)

        def shared_loss(at: Tensor, rows: Tensor) -> Tensor:
            return self.cross_entropy(at, rows) + self.shared_weight / 2 * (self.apart(at) - self.clip).abs()

        vector = self.descend(vector, first, personal_loss, personal)
        vector = self.descend(vector, second, shared_loss, 1 - personal)
        self.own[client] = vector.clone()
        return vector - self.server

    def release(self, updates: dict[int, Tensor]) -> Tensor:
        """As published every client noises its update by its share, and counts by its samples."""
        if not self.published:
            return super().release(updates)
        total, noise = torch.zeros(SIZE, dtype=torch.float64), self.normals(len(updates), SIZE)
        std = self.clip * self.sigma / math.sqrt(self.m)
        sizes = {client: len(self.samples(client)) for client in updates}
        for place, client in enumerate(updates):
            noised = self.clipped(updates[client], self.clip) + std * noise[place]
            total += sizes[client] / sum(sizes.values()) * noised
        return total


class FedADDP(FisherPersonal):
    """FedDPA's masks without its terms; each coordinate stays within C/√M of its start, M the cohort."""

    personal_weight = shared_weight = 0.0

    def after_step(self, vector: Tensor, begin: Tensor) -> Tensor:
        """The clamp."""
        radius = self.clip / math.sqrt(self.expected())
        return begin + (vector - begin).clamp(-radius, radius)

    def clipped(self, update: Tensor, norm: float) -> Tensor:
        """As published the clamp is all: the norm is not clipped."""
        return update if self.published else super().clipped(update, norm)


class FedGLP(FisherPersonal):
    """Growing masks and layer clips (FedGLP-ADP); as published both by client, from its own upload."""

    limit, growth, gamma = 0.4, 0.15, 0.8

    def start(self) -> None:
        """Masks, log-odds and norms: of the run, or of each client."""
        keys = range(self.config.clients) if self.published else [0]
        share = [(layer.stop - layer.start) / SIZE for layer in LAYERS]
        self.masks = {key: torch.zeros(SIZE, dtype=torch.float64) for key in keys}
        self.grown = dict.fromkeys(keys, 0.0)
        self.odds = {key: [math.log(value / (1 - value)) for value in share] for key in keys}
        self.norms = {key: [0.0, 0.0] for key in keys}

    def key(self, client: int) -> int:
        """Return the key of the masks and weights that a client uses."""
        return client if self.published else 0

    def layer_clips(self, key: int) -> list[float]:
        """C_l = C·√tw_l."""
        raw = [1 / (1 + math.exp(-value)) for value in self.odds[key]]
        return [self.clip * math.sqrt(value / sum(raw)) for value in raw]

    def client(self, client: int) -> Tensor:
        """Shared coordinates are uploaded."""
        personal = self.masks[self.key(client)]
        begin = torch.where(personal > 0, self.own[client], self.server)
        (batches,) = self.batches(client, "minibatch", 1)
        self.own[client] = self.alternate(begin, personal, batches)
        return (self.own[client] - begin) * (1 - personal)

    def grow(self, key: int, released: Tensor) -> None:
        """The largest |noised update| of what is still shared turns personal, layer by layer."""
        self.grown[key] = min(self.grown[key] + self.growth, self.limit)
        for layer in LAYERS:
            size = layer.stop - layer.start
            missing = round(self.grown[key] * size) - int(self.masks[key][layer].sum())
            scores = torch.where(self.masks[key][layer] > 0, -1.0, released[layer].abs())
            self.masks[key][layer] += top(scores, missing)

    def move_weights(self, key: int, update: Tensor) -> None:
        """Algorithm 1."""
        for index, layer in enumerate(LAYERS):
            norm = float(update[layer].norm())
            self.odds[key][index] += self.gamma if norm > self.norms[key][index] else -self.gamma
            self.norms[key][index] = norm

    def release(self, updates: dict[int, Tensor]) -> Tensor:
        """Clip by layers, noise √L·σ·C_l on what is shared, aggregate."""
        total, sharers = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)
        normals = self.normals(self.m, SIZE) if self.published else self.normals(1, SIZE)
        for place, client in enumerate(updates):
            key, upload = self.key(client), torch.zeros(SIZE, dtype=torch.float64)
            for layer, norm in zip(LAYERS, self.layer_clips(key), strict=True):
                upload[layer] = self.clipped(updates[client][layer], norm)
                if self.published:
                    std = math.sqrt(len(LAYERS) / self.m) * self.sigma * norm
                    upload[layer] += std * normals[place, layer] * (1 - self.masks[key][layer])
            total += upload
            sharers += 1 - self.masks[key]
            if self.published:
                self.move_weights(key, updates[client])
                self.grow(key, upload)
        if self.published:
            return torch.where(sharers > 0, total / sharers.clamp_min(1), 0.0)  # eq. 12
        for layer, norm in zip(LAYERS, self.layer_clips(0), strict=True):
            std = math.sqrt(len(LAYERS)) * self.sigma * norm
            total[layer] += std * normals[0, layer] * (1 - self.masks[0][layer])
        self.move_weights(0, total)
        self.grow(0, total)
        return total / self.expected()


class PFedDSU(LocalHead):
    """The extractor under a mask of its largest weights, its update kept near C (DP-pFedDSU eq. 6-11)."""

    share, weight = 0.05, 0.2

    def start(self) -> None:
        """No masks yet; in sound mode the controller asks for a share of its own."""
        super().start()
        self.share = self.share if self.published else 0.3
        self.kept: dict[int, Tensor] = {}

    def mask(self, vector: Tensor) -> Tensor:
        """Top-S by |weight| in the extractor's layer: of the received model, or of the present one as published."""
        mask = torch.ones(SIZE, dtype=torch.float64)
        source = vector if self.published else self.server
        mask[LAYERS[0]] = top(source[LAYERS[0]].abs(), round(self.share * BODY))
        return mask

    def body_loss(self, vector: Tensor, batch: Tensor, begin: Tensor) -> Tensor:
        """Eq. 10, of the extractor: it starts where the first phase left everything."""
        excess = length(((vector - begin) * self.mask(vector.detach()))[LAYERS[0]]) - self.clip
        return self.masked_loss(vector, batch) + self.weight / 2 * excess.abs()

    def keep(self, client: int, begin: Tensor, end: Tensor) -> Tensor:
        """(θ^τ - θ^0)⊙M."""
        self.kept[client] = self.mask(end) * self.body
        return super().keep(client, begin, end) * self.kept[client]

    def noised_support(self) -> Tensor:
        """The public mask."""
        return super().noised_support() * self.mask(self.server)

    def release(self, updates: dict[int, Tensor]) -> Tensor:
        """As published each client noises what it uploads."""
        if not self.published:
            return super().release(updates)
        normals, total = self.normals(max(1, self.m), SIZE), torch.zeros(SIZE, dtype=torch.float64)
        for place, client in enumerate(updates):
            std = self.clip * self.sigma / math.sqrt(self.m)
            total += self.clipped(updates[client], self.clip) + std * normals[place] * self.kept[client]
        return total / self.divisor()


class PPSGD(PlainMethod):
    """Logits φ(x)ᵀ(w + θ_i): one joint step on φ, w and θ_i."""

    def start(self) -> None:
        """θ_i = 0."""
        self.added = {i: torch.zeros(SIZE - BODY, dtype=torch.float64) for i in range(self.config.clients)}

    def sum(self, both: Tensor) -> Tensor:
        """The model of (φ, w, θ)."""
        return torch.cat([both[:BODY], both[BODY:SIZE] + both[SIZE:]])

    def client(self, client: int) -> Tensor:
        """(φ, w) is uploaded."""
        (batches,) = self.batches(client, "minibatch", 1)
        begin = torch.cat([self.server, self.added[client]])
        end = self.descend(begin, batches, lambda at, rows: self.cross_entropy(self.sum(at), rows))
        self.added[client] = end[SIZE:].clone()
        return end[:SIZE] - self.server

    def tested(self, client: int) -> Tensor:
        """With the newest shared part."""
        return self.sum(torch.cat([self.server, self.added[client]]))


class MultiTask(PlainMethod):
    """Every client trains a model of its own, pulled to the server's; tested after fine-tuning (PMTL-FT)."""

    def client(self, client: int) -> Tensor:
        """λ‖w - θ_g‖², λ = 0.1."""
        (batches,) = self.batches(client, "minibatch", 1)
        pulled = lambda at, rows: self.cross_entropy(at, rows) + 0.1 * ((at - self.server) ** 2).sum()  # noqa: E731
        self.own[client], self.seen[client] = self.descend(self.own[client], batches, pulled), True
        return self.own[client] - self.server

    def tested(self, client: int) -> Tensor:
        """Fine-tuned by cross-entropy alone."""
        (batches,) = self.batches(client, "evaluation", 1)
        return self.descend(self.own[client], batches)


class Distilled(PlainMethod):
    """Training starts from the server's model, with the previous local model for a teacher."""

    decoupled, private = True, True

    def client(self, client: int) -> Tensor:
        """Cross-entropy alone the first time."""
        teacher = self.own[client].clone()
        (batches,) = self.batches(client, "minibatch", 1)
        taught = self.taught if self.seen[client] else (lambda at, rows, _: self.cross_entropy(at, rows))
        end = self.descend(self.server.clone(), batches, lambda at, rows: taught(at, rows, teacher))
        return self.keep(client, self.server, end)

    def taught(self, vector: Tensor, batch: Tensor, teacher: Tensor) -> Tensor:
        """pFedSD: CE + T²·KL; ACDP-pFSD eq. 8-9: half CE, half T²·(TCKD + 𝒩·NCKD), T = 3, 𝒩 = 1/4."""
        wanted = torch.softmax(logits_of(teacher, self.images[batch]) / 3, -1)
        own = torch.softmax(logits_of(vector, self.images[batch]) / 3, -1)
        loss, divergence = self.cross_entropy(vector, batch), 0.0
        for p, q, label in zip(wanted, own, self.labels[batch], strict=True):
            if not self.decoupled:
                divergence = divergence + (p * (p / q).log()).sum()
                continue
            others = torch.arange(CLASSES) != label
            b = torch.stack([p[label], p[others].sum()]), torch.stack([q[label], q[others].sum()])
            rest = p[others] / p[others].sum(), q[others] / q[others].sum()
            target, non_target = ((x * (x / y).log()).sum() for x, y in (b, rest))
            divergence = divergence + target + 0.25 * non_target
        divergence = 9 * divergence / len(batch)
        return 0.5 * loss + 0.5 * divergence if self.decoupled else loss + divergence

    def release(self, updates: dict[int, Tensor]) -> Tensor:
        """Without privacy neither clip nor noise."""
        return super().release(updates) if self.private else sum(updates.values()) / self.expected()

    def tested(self, client: int) -> Tensor:
        """The local model as it was after training."""
        return self.own[client]


class PFSD(Distilled):
    """ACDP-pFSD without privacy."""

    private = False


class PFedSD(PFSD):
    """Classical distillation."""

    decoupled = False


class BlurLus(PlainMethod):
    """λ/2·max(0, ‖Δ‖² - C²), and all but the largest of the update left out."""

    share = 0.06

    def client(self, client: int) -> Tensor:
        """λ = 0.1."""

        def bounded(at: Tensor, rows: Tensor) -> Tensor:
            excess = ((at - self.server) ** 2).sum() - self.clip**2
            return self.cross_entropy(at, rows) + 0.05 * torch.relu(excess)

        (batches,) = self.batches(client, "minibatch", 1)
        update = self.descend(self.server, batches, bounded) - self.server
        return update * top(update.abs(), round(self.share * SIZE))


class FedSAM(PlainMethod):
    """Gradients from ρ = 0.5 up the hill."""

    adaptive = False

    def client(self, client: int) -> Tensor:
        """Two passes per minibatch; ASAM measures ρ relative to each coordinate's size."""
        (batches,) = self.batches(client, "minibatch", 1)
        descent, vector = Descent(self.config), self.server
        for batch in batches:
            scale = vector.abs() if self.adaptive else torch.ones_like(vector)
            slope = gradient(lambda at, rows=batch: self.cross_entropy(at, rows), vector)
            climbed = vector + 0.5 * scale**2 * slope / (scale * slope).norm()
            vector = descent.step(vector, gradient(lambda at, rows=batch: self.cross_entropy(at, rows), climbed))
        return vector - self.server


class AdaptiveFedSAM(FedSAM):
    """The adaptive variant."""

    adaptive = True


class LocalBody(PlainMethod):
    """DP-LG: the body stays, the head is shared."""

    part = LAYERS[0]


class FedSMP(PlainMethod):
    """Only coordinates drawn by the server, anew in every round, are exchanged and noised."""

    def drawn(self) -> Tensor:
        """The mask of this round: 40 % of the coordinates."""
        draws = mask_draws(self.seed, self.round, "of a run", 0, SIZE)
        return top(draws.double(), round(0.4 * SIZE))

    def client(self, client: int) -> Tensor:
        """Sparsified before the clip."""
        return super().client(client) * self.drawn()

    def noised_support(self) -> Tensor:
        """As what is uploaded."""
        return self.drawn()


class OwnRandomMask(PlainMethod):
    """Each client keeps coordinates that it draws itself, unseen by anybody, so that all of them are noised."""

    def client(self, client: int) -> Tensor:
        """Sparsified before the clip, by a draw that depends on nobody else."""
        draws = mask_draws(self.seed, self.round, "of a client", client, SIZE)
        return super().client(client) * top(draws.double(), round(0.3 * SIZE))


class AdpPfl(PlainMethod):
    """Fisher sparsification before the clip; clients at risk get less of the budget (ADP-PFL)."""

    share, span = 0.06, 4.0

    def start(self) -> None:
        """Nobody's risk is known."""
        self.reference, self.risk_sigma = 0.0, 0.0
        self.last: dict[int, Tensor] = {}

    def client(self, client: int) -> Tensor:
        """The update where the trained model's information is highest."""
        (batches,) = self.batches(client, "minibatch", 1)
        end = self.descend(self.server, batches)
        self.own[client] = end
        self.last[client] = batches[-1]
        return (end - self.server) * top(fisher(self, client, end), round(self.share * SIZE))

    def measured(self, client: int) -> float:
        """√ of the mean over 4 random signs of ‖∇_x⟨∇_θ ℓ, v⟩‖², on the round's last minibatch (eq. 7-8)."""
        signs = torch.randint(0, 2, (4, SIZE), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
        squares = []
        for sign in signs:
            images = self.images[self.last[client]].clone().requires_grad_()
            leaf = self.own[client].clone().requires_grad_()
            loss = functional.cross_entropy(logits_of(leaf, images), self.labels[self.last[client]])
            (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
            (by_pixel,) = torch.autograd.grad(slope @ sign, images)
            squares.append(float((by_pixel**2).sum()))
        return math.sqrt(float(np.mean(squares)))

    def ratio(self, client: int) -> float:
        """Of the round's budget (eq. 12), at least a tenth; all of it where a risk is not known."""
        reference = self.reference
        if self.published:
            known = [risk for risk in self.risk.values() if risk]
            reference = min(known) if known else 0.0
        if not self.risk[client] or not reference:
            return 1.0
        return min(1.0, max(0.1, reference / self.risk[client]))

    def release(self, updates: dict[int, Tensor]) -> Tensor:
        """Sound: a smaller clip for the risky. As published: more noise for them, and weights by samples."""
        ratios = {client: self.ratio(client) for client in updates}
        total = torch.zeros(SIZE, dtype=torch.float64)
        if not self.published:
            for client in updates:
                total += self.clipped(updates[client], self.clip * ratios[client])
            total += self.clip * self.sigma * self.normals(SIZE)
        else:
            normals = self.normals(max(1, self.m), SIZE)
            counts = {client: len(self.samples(client)) for client in updates}
            for place, client in enumerate(updates):
                weight = counts[client] * self.m / sum(counts.values())
                std = self.clip * self.sigma / ratios[client] / math.sqrt(self.m)
                total += weight * (self.clipped(updates[client], self.clip) + std * normals[place])
        for client in updates:
            self.risk[client] = self.measured(client)
        scores = [math.log10(self.risk[client]) / self.span for client in updates]
        draw = normal_draws((1,), self.seed, "risk", self.round).item()
        mean = (sum(max(-1, min(1, score)) for score in scores) + self.risk_sigma * draw) / self.expected()
        self.reference = 10 ** (self.span * max(-1, min(1, mean)))
        return total / self.divisor()


PLAIN_METHODS: dict[str, type[PlainMethod]] = {
    "dp-pfeddsu": PFedDSU,
    "feddpa": FisherPersonal,
    "feddpa-program": FedDPAProgram,
    "adp-pfl": AdpPfl,
    "acdp-pfsd": Distilled,
    "dp-pfsd": Distilled,
    "pfedsd": PFedSD,
    "pfsd": PFSD,
    "fedglp-adp": FedGLP,
    "ppsgd": PPSGD,
    "pmtl-ft": MultiTask,
    "centaur": LocalHead,
    "blur-lus": BlurLus,
    "dp-fedsam": FedSAM,
    "dp-lg": LocalBody,
    "fedaddp": FedADDP,
    "fed-smp": FedSMP,
}
