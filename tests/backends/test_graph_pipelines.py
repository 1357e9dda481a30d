"""Pipelines from TensorFlow graphs: every record once, on every runtime, with memory that does not grow."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca import XShards, init_orca_context
from orca.bigdl import pipeline
from orca.bigdl.pipeline import load_pipeline
from orca.context import Context
from orca.errors import TransformError
from tests.backends.pipeline_cases import ALL, BY_FILE, taken
from tests.backends.pipeline_graphs import CUTS, KINDS, ROWS, dump
from tests.programs import run

NODES = ["net/features", "ids"]
PROGRAM = """
from pathlib import Path
from tests.backends import pipeline_cases, pipeline_graphs
pipeline_graphs.main(Path({0!r}))
for kind in ("queue", "dataset"):
    pipeline_cases.large({0!r} + "/" + kind, kind)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs that another process has dumped."""
    path = tmp_path_factory.mktemp("pipelines")
    run(PROGRAM.format(str(path)))
    return path


@pytest.fixture(scope="module")
def warm() -> Iterator[Context]:
    """A local context whose processes keep TensorFlow from test to test."""
    context = init_orca_context(cores=3)
    yield context
    context.stop_gangs()


def files(folder: Path, ending: str) -> list[str]:
    return [str(folder / f"{number}.{ending}") for number in range(len(CUTS) - 1)]


def check(shards: XShards, expected: np.ndarray[Any, Any], count: int = ROWS) -> None:
    """Compare features with those of one process; every row has to be there once."""
    rows = shards.to_numpy()
    order = np.argsort(rows["ids"], kind="stable")
    assert np.array_equal(rows["ids"][order], np.arange(count))
    features = rows["net/features"][order].reshape(count, -1)
    np.testing.assert_allclose(features, expected[:count], rtol=0, atol=1e-6)


def test_every_row_comes_once_and_equals_one_process(context: Context, folder: Path):
    for kind in KINDS:
        loaded = load_pipeline(folder / kind / "model.pb", folder / kind / "model.bin")
        for workers in (1, 2, 3):
            shards = loaded.features(NODES, num_shards=workers).cache()
            check(shards, np.load(folder / f"{kind}.npy"))
            assert shards.num_partitions() == workers
            assert min(shards.shard_rows()) > 0


def test_a_context_has_a_shard_for_each_core_in_the_order_of_the_files(warm: Context, folder: Path):
    shards = load_pipeline(folder / "record_queue").features({"y": "ids"})
    assert shards.num_partitions() == warm.cores
    assert np.array_equal(shards.to_numpy()["y"], np.arange(ROWS))


@pytest.mark.parametrize("case", ALL)
def test_other_ways_to_read_compute_every_row_once(warm: Context, folder: Path, tmp_path: Path, case: str):
    read, ending = ALL[case]
    expected = dump(read, files(folder, ending), str(tmp_path))
    chosen = files(folder, ending) if case == "placeholder" else None
    check(load_pipeline(tmp_path).features(NODES, files=chosen, num_shards=3), expected)


@pytest.mark.parametrize("case", BY_FILE)
def test_a_row_for_each_file(warm: Context, folder: Path, tmp_path: Path, case: str):
    expected = dump(BY_FILE[case], files(folder, "bin"), str(tmp_path))
    rows = load_pipeline(tmp_path).features(NODES, num_shards=2).to_numpy()
    assert sorted(rows["ids"]) == [0, 1, 2, 3]
    firsts = np.array(CUTS)[rows["ids"]]
    np.testing.assert_allclose(rows["net/features"], expected[firsts], rtol=0, atol=1e-6)


def test_the_first_rows_are_those_of_all_files(warm: Context, folder: Path, tmp_path: Path):
    expected = dump(taken, files(folder, "tfrecord"), str(tmp_path))
    check(load_pipeline(tmp_path).features(NODES, num_shards=3), expected, count=100)


@pytest.mark.parametrize("kind", ["fixed_queue", "initializable", "one_shot"])
def test_other_files_take_the_place_of_the_graphs(warm: Context, folder: Path, kind: str):
    ending = KINDS[kind][1]
    rows = load_pipeline(folder / kind).features("ids", files=folder / f"2.{ending}", num_shards=2).to_numpy()
    assert np.array_equal(rows["ids"], np.arange(81, 150))


@pytest.mark.parametrize("kind", KINDS)
def test_more_shards_than_records_are_empty_shards(warm: Context, folder: Path, kind: str):
    ending = KINDS[kind][1]
    shards = load_pipeline(folder / kind).features(NODES, files=[folder / f"1.{ending}"], num_shards=3)
    assert sum(shards.shard_rows()) == 1
    assert {shard["net/features"].shape[1:] for shard in shards.collect()} == {(7,)}


@pytest.mark.parametrize("kind", ["record_queue", "one_shot"])
def test_a_damaged_record_names_its_file(warm: Context, folder: Path, tmp_path: Path, kind: str):
    content = bytearray((folder / "0.tfrecord").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "damaged.tfrecord").write_bytes(content)
    shards = load_pipeline(folder / kind).features(NODES, files=tmp_path / "damaged.tfrecord", num_shards=1)
    with pytest.raises(TransformError, match=r"damaged\.tfrecord"):
        shards.collect()


def test_a_remote_file_is_read(warm: Context, folder: Path):
    url = f"filecache::file://{folder / '2.tfrecord'}"
    for kind in ("record_queue", "one_shot"):
        rows = load_pipeline(folder / kind).features("ids", files=url).to_numpy()
        assert np.array_equal(rows["ids"], np.arange(81, 150))


def peak(shard: dict[str, Any]) -> dict[str, Any]:
    """Return the largest memory of this process so far, and the rows."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"megabytes": np.array([kilobytes / 1024]), "rows": np.array([len(shard["large"])])}


def test_memory_does_not_grow_with_the_rows(
    warm: Context, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipeline, "_SHARD_BYTES", 2 << 20)
    content = (folder / "0.bin").read_bytes()
    (tmp_path / "few.bin").write_bytes(content * 3)
    (tmp_path / "many.bin").write_bytes(content * 60)
    for kind in ("queue", "dataset"):
        loaded = load_pipeline(folder / kind)
        few = loaded.features("large", files=tmp_path / "few.bin").transform_shard(peak).to_numpy()
        many = loaded.features("large", files=tmp_path / "many.bin").transform_shard(peak).to_numpy()
        assert (few["rows"].sum(), many["rows"].sum()) == (240, 4800)
        # 4,800 rows of 32 kB are 150 MB of results.
        assert many["megabytes"].max() - few["megabytes"].max() < 20
