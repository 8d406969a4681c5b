"""Layers stay local by number or name, beside a client's own model too, and what stays local is never released."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fl_core.base.errors import InputError
from fl_core.run.federation import Federation
from tests.fl_core.plain import config, plan, release_of

torch.set_num_threads(1)


def played(method: str, edits: str, **changes: Any) -> Federation:
    federation = Federation(config(method, set=edits, **changes))
    for _ in range(2):
        federation.run_round(plan())
    return federation


def layers_of(federation: Federation) -> list[str]:
    return [layer.name for layer in federation.model.layers]


@pytest.mark.parametrize(
    ("edits", "local"),
    [
        ("local=2", [-2, -1]),
        ("local=first(2)", [0, 1]),
        ("local=conv1+fc2", [0, -1]),
        ("local=conv2 + conv1", [0, 1]),
    ],
)
@pytest.mark.parametrize("method", ["fedper", "acdp-pfsd", "pmtl-ft"])
def test_named_layers_stay_local_and_the_others_are_shared(method: str, edits: str, local: list[int]) -> None:
    federation = played(method, edits, model="cnn2", local_steps=1)
    own = [federation.model.layers[one] for one in local]
    start = federation.model.initial(federation.settings[0].seed)
    server, released = federation.server[0], release_of(federation)[0]
    kept = federation.clients["local"][0]
    assert kept.std(0).max() > 0  # every client has weights of its own
    assert federation.clients["local"].shape[-1] == sum(one.stop - one.start for one in own)
    for layer in federation.model.layers:
        moved = bool((server[layer.slice] != start[layer.slice]).any())
        assert moved is (layer not in own), layer.name
        assert bool(released[layer.slice].any()) is (layer not in own), layer.name


def test_a_round_starts_from_the_clients_layers_in_the_servers_model() -> None:
    federation = played("fedper", "local=conv1+fc2", model="cnn2", local_steps=1)
    part, model = federation.recipe.personalization, federation.model
    state = {name: value[0] for name, value in federation.clients.items()}
    found = part.tested(model, federation.server.expand(8, -1), state)
    conv, head = model.layers[0], model.layers[-1]
    expected = federation.server.repeat(8, 1)
    expected[:, conv.slice] = state["local"][:, : conv.stop - conv.start]
    expected[:, head.slice] = state["local"][:, conv.stop - conv.start :]
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("one", "other"), [("local=1", "local=head"), ("local=first(3)", "local=body")])
def test_the_number_of_layers_is_the_named_part_bit_for_bit(one: str, other: str) -> None:
    first, second = played("fedper", one, model="cnn2"), played("fedper", other, model="cnn2")
    assert len(layers_of(first)) == 4
    assert torch.equal(first.server, second.server)
    assert torch.equal(first.clients["local"], second.clients["local"])


def test_a_block_names_all_of_its_layers() -> None:
    federation = Federation(config("fedper", model="resnet20"))
    blocks = {name.rpartition(".")[0] for name in layers_of(federation) if "." in name}
    block = sorted(blocks)[-1]
    spans = federation.model.spans(block)
    assert len(spans) > 1
    assert all(one.name.startswith(f"{block}.") for one in spans)
    assert len(spans) == sum(name.startswith(f"{block}.") for name in layers_of(federation))


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ("local=conv3", r"local: layer of model 'cnn2' 'conv3' is unknown; did you mean conv[12]"),
        ("local=fc2+xyz", "local: layer of model 'cnn2' 'xyz' is unknown; known are all, body, conv1, conv2, fc1, fc2"),
        ("local=heads", "local: layer of model 'cnn2' 'heads' is unknown; did you mean head"),
        ("local=4", r"local is '4', but of the 4 layers of model 'cnn2' 1 to 3 can be a part\."),
        ("local=0", "local is '0', but of the 4 layers"),
        ("local=first(9)", r"local is 'first\(9\)', but of the 4 layers"),
        ("local=conv1+conv2+fc1+fc2", "which is the whole of model 'cnn2'; write all"),
    ],
)
def test_layers_that_a_network_lacks_are_refused_in_one_sentence(edits: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Federation(config("fedper", set=edits, model="cnn2"))


def test_a_clients_own_model_holds_its_local_head() -> None:
    federation = played("dp-pfsd", "local=head")
    clients, head = federation.clients, federation.model.head
    assert torch.equal(clients["own"][..., head.slice], clients["local"])
    with pytest.raises(InputError, match=r"personalization\.local is 'all', but 'own-model' learns from what others"):
        config("dp-pfsd", set="local=all")
