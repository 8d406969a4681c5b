"""TensorBoard events, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from tensorboard.plugins.hparams import metadata  # type: ignore[import-untyped]
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # type: ignore[import-untyped]

from experiments.records.tensorboard import SAMPLE_ERROR, TAGS, RoundWriter, tag_of
from fl_core.base.errors import InputError
from fl_core.run.plan import METRICS


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def scalars(events: EventAccumulator, tag: str) -> list[tuple[int, Any]]:
    return [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]


def plugin(events: EventAccumulator, tag: str) -> HParamsPluginData:
    content = events.SummaryMetadata(tag).plugin_data.content
    return HParamsPluginData.FromString(content)


def test_figures_come_back_under_readable_names(tmp_path: Path) -> None:
    with RoundWriter(tmp_path) as writer:
        for index in (1, 2, 3):
            writer.round(index, {name: place + index / 10 for place, name in enumerate(TAGS)})
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == sorted(TAGS.values())
    for place, tag in enumerate(TAGS.values()):
        assert scalars(events, tag) == [(index, place + index / 10) for index in (1, 2, 3)]


def test_the_error_of_a_sample_of_clients_has_no_chart_where_all_are_tested(tmp_path: Path) -> None:
    for folder, error in (("all", 0.0), ("some", 0.01)):
        with RoundWriter(tmp_path / folder) as writer:
            writer.round(1, {"personal_accuracy": 0.0, SAMPLE_ERROR: error})
    tags = {TAGS["personal_accuracy"]}
    assert set(read(tmp_path / "all").Tags()["scalars"]) == tags
    assert set(read(tmp_path / "some").Tags()["scalars"]) == tags | {TAGS[SAMPLE_ERROR]}


def test_tags_are_readable_grouped_and_unique() -> None:
    assert len(set(TAGS.values())) == len(TAGS)
    for tag in TAGS.values():
        group, name = tag.split("/")
        assert group.isalpha()
        assert "_" not in name


def test_unknown_figures_go_below_other(tmp_path: Path) -> None:
    with RoundWriter(tmp_path) as writer:
        writer.round(1, {"sparsity": 0.5})
    assert scalars(read(tmp_path), "other/sparsity") == [(1, 0.5)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_skipped(tmp_path: Path, value: float) -> None:
    with RoundWriter(tmp_path) as writer:
        writer.round(1, {"clip_norm": value, "global_loss": 1.0})
        writer.round(2, {"clip_norm": 0.5})
    events = read(tmp_path)
    assert scalars(events, "control/clip norm") == [(2, 0.5)]
    assert scalars(events, "loss/global model") == [(1, 1.0)]


def test_everything_is_on_disk_when_an_exception_passes(tmp_path: Path) -> None:
    def interrupted() -> None:
        with RoundWriter(tmp_path) as writer:
            for index in range(1, 31):
                writer.round(index, {"clip_norm": 1.0})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(read(tmp_path).Scalars("control/clip norm")) == 30


def test_a_resumed_run_replaces_the_rounds_after_its_start(tmp_path: Path) -> None:
    with RoundWriter(tmp_path / "run") as writer:
        for index in (1, 2, 3):
            writer.round(index, {"clip_norm": 1.0})
    [first] = (tmp_path / "run").iterdir()
    first.rename(first.with_name("events.out.tfevents.1.first"))  # the reader takes files in the order of their names
    with RoundWriter(tmp_path / "run", resumed_at=3) as writer:
        writer.round(3, {"clip_norm": 2.0})
    assert scalars(read(tmp_path / "run"), "control/clip norm") == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_hparams_are_in_the_runs_own_events(tmp_path: Path) -> None:
    with RoundWriter(tmp_path) as writer:
        writer.round(7, {"global_accuracy": 0.7})
        writer.hparams(
            {"controller": "aqc", "epsilon": math.inf, "seed": 3, "lr": 0.1, "adaptive": True},
            {"global_accuracy": 0.75, "global_loss": math.nan},
        )
    assert [path.is_file() for path in tmp_path.iterdir()] == [True]  # one file, no run below the run
    events = read(tmp_path)
    start = plugin(events, metadata.SESSION_START_INFO_TAG).session_start_info.hparams
    assert {name: start[name].string_value for name in ("controller", "epsilon", "adaptive")} == {
        "controller": "aqc",
        "epsilon": "inf",
        "adaptive": "yes",
    }
    assert (start["seed"].number_value, start["lr"].number_value) == (3, 0.1)
    shown = [info.name.tag for info in plugin(events, metadata.EXPERIMENT_TAG).experiment.metric_infos]
    assert shown == ["final/global accuracy", "final/rounds"]
    for tag in shown:  # a metric without a scalar of its tag stays empty on the page
        assert tag in events.Tags()["scalars"]
    assert scalars(events, "final/global accuracy") == [(7, 0.75)]
    assert scalars(events, "accuracy/global model") == [(7, 0.7)]
    assert plugin(events, metadata.SESSION_END_INFO_TAG).HasField("session_end_info")


@pytest.mark.parametrize("metrics", [{}, {"global_accuracy": math.nan}])
def test_metrics_are_never_empty(tmp_path: Path, metrics: dict[str, float]) -> None:
    with RoundWriter(tmp_path) as writer:
        writer.hparams({"seed": 1}, metrics)
    events = read(tmp_path)
    assert [m.name.tag for m in plugin(events, metadata.EXPERIMENT_TAG).experiment.metric_infos] == ["final/rounds"]
    assert scalars(events, "final/rounds") == [(0, 0.0)]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"TensorBoard events cannot be written to .*file"):
        RoundWriter(tmp_path / "file")


def test_every_reported_figure_has_a_chart_of_its_own_beside_its_kind():
    assert set(METRICS) == set(TAGS)
    assert tag_of("layer_norm_noised.fc1") == "telemetry/layer norm noised fc1"
    assert tag_of("something") == "other/something"
