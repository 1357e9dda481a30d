"""Checkpoints of sharded models: written by the ranks in parts, read by any number of them, whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from orca import Estimator
from orca.context import Context
from orca.errors import DataError
from orca.testing.comparing import same_state
from orca.testing.faults import Fault
from tests.conformance.models import make_data
from tests.conformance.torch_cases import Network


def estimator(workers: int = 3, **more: Any) -> Estimator:
    parts = {"model": Network, "optimizer": torch.optim.Adam, "loss": nn.CrossEntropyLoss(), "config": {"lr": 0.01}}
    return Estimator.from_torch(**{**parts, "workers": workers, "seed": 4, "sharded": True, **more})


def fit(est: Estimator, **more: Any) -> None:
    est.fit(*make_data(40), batch_size=8, epochs=2, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Estimator]:
    """The folder of a run of three ranks that has ended after step 7, within its second epoch, and its estimator."""
    from orca.context import init_orca_context

    init_orca_context(cores=6)
    folder = tmp_path_factory.mktemp("sharded")
    est = estimator(model_dir=str(folder))
    fit(est, max_steps=7, checkpoint_trigger=7)
    return folder, est


def test_each_rank_writes_its_part_and_the_driver_the_rest(run):
    folder, _ = run
    files = {path.name: path.stat().st_size for path in (folder / "checkpoint-7").iterdir()}
    manifest = json.loads((folder / "checkpoint-7" / "orca.json").read_text())
    assert len(manifest["parts"]["files"]) == 3
    assert files.keys() == {"orca.json", manifest["arrays"], *manifest["parts"]["files"]}
    weight = manifest["parts"]["arrays"]["model.body.0.weight"]
    assert weight["shape"] == [300, 6]
    assert [offsets for _, _, offsets in weight["slices"]] == [[0, 0], [100, 0], [200, 0]]
    assert os.listdir(folder) == ["checkpoint-7"]


@pytest.mark.parametrize("workers", [3, 2, 1])
def test_any_number_of_ranks_reads_a_checkpoint_in_parts(local: Context, run, workers):
    folder, saved = run
    est = estimator(workers).load_orca_checkpoint(str(folder))
    same_state(est, saved, True, f"loaded on {workers} ranks")
    # A warm replica has the state in parts again.
    before = est.evaluate(*make_data(40))["loss"]
    assert before == pytest.approx(saved.evaluate(*make_data(40))["loss"], rel=1e-5)


def test_resume_and_restart_from_parts_are_bit_for_bit(local: Context, run, tmp_path):
    whole = estimator()
    fit(whole)
    second = estimator(model_dir=str(run[0]))
    fit(second, resume=True)
    same_state(second, whole, True, "after resume=True")
    broken = estimator(model_dir=str(tmp_path))
    fit(broken, checkpoint_trigger=3, max_failures=1, callbacks=[Fault("kill", 1, 9)])
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-3", "checkpoint-6", "checkpoint-9"]
    same_state(broken, whole, True, "after a killed rank")


def test_a_run_of_other_size_continues_from_parts(local: Context, tmp_path):
    def make(workers: int, **more: Any) -> Estimator:
        return estimator(workers, model=_narrow, **more)

    whole, first, second = make(3), make(3, model_dir=str(tmp_path)), make(2, model_dir=str(tmp_path))
    fit(whole)
    fit(first, max_steps=7, checkpoint_trigger=7)
    fit(second, resume=True)
    for name, value in second.get_state_dict().items():
        torch.testing.assert_close(value, whole.get_state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("damage", ["changed", "missing", "unfinished"])
def test_a_damaged_part_is_noticed_and_resume_uses_the_checkpoint_before(local: Context, tmp_path, caplog, damage):
    est = estimator(2, model_dir=str(tmp_path))
    fit(est, max_steps=8, checkpoint_trigger=4)
    newest = tmp_path / "checkpoint-8"
    part = sorted(newest.glob("arrays-*-1.safetensors"))[0]
    if damage == "changed":
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)
    elif damage == "missing":
        part.unlink()
    else:
        (newest / "orca.json").unlink()  # interrupted before the driver has written it
    if damage != "unfinished":
        with pytest.raises(DataError, match=rf"is damaged: .*{part.name}"):
            estimator(2).load(str(newest))
    again = estimator(2, model_dir=str(tmp_path))
    with caplog.at_level(logging.WARNING, "orca"):
        fit(again, resume=True)
    assert (damage == "unfinished") != any("Resuming from the checkpoint before it" in line for line in caplog.messages)
    whole = estimator(2)
    fit(whole)
    same_state(again, whole, True, "after resuming from the older checkpoint")
    assert not list(tmp_path.glob(".orca-*"))


def test_a_folder_that_ranks_cannot_reach_is_written_by_the_driver(local: Context, caplog):
    """The memory of the driver's process is a path that no rank reaches; the reason is logged once."""
    path = "memory://sharded"
    est = estimator(2, model_dir=path)
    with caplog.at_level(logging.WARNING, "orca"):
        fit(est, checkpoint_trigger="epoch")
    (line,) = caplog.messages
    assert line.startswith("checkpoints are gathered by the driver, which needs memory for the whole state: rank 0 on ")
    assert f"cannot reach model_dir={path!r}. Use a path that all hosts share" in line
    same_state(estimator(2).load_orca_checkpoint(path), est, True, "from the gathered checkpoint")


def test_half_precision_weights_are_kept_bit_for_bit(local: Context, tmp_path):
    def make(**more: Any) -> Estimator:
        return estimator(2, model=_half, **more)

    first = make(model_dir=str(tmp_path))
    x, y = make_data(40)
    first.fit(x, y, batch_size=8, epochs=1, checkpoint_trigger="epoch")
    second = make().load_orca_checkpoint(str(tmp_path))
    assert second.get_state_dict()["1.weight"].dtype == torch.bfloat16
    same_state(second, first, True, "weights in bfloat16")


def _narrow(config: dict[str, Any]) -> nn.Module:
    """Without dropout and batch norm; with fewer rows in a weight than ranks."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


class ToHalf(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.bfloat16)


class ToSingle(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


def _half(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(ToHalf(), nn.Linear(6, 4).to(torch.bfloat16), ToSingle(), nn.Linear(4, 2))


MEMORY = """
import json, logging, resource, sys
import numpy as np, torch
from torch import nn
from orca import Estimator, init_orca_context
from orca.callbacks import Logger
from orca.runs import saved_states
import safetensors.numpy

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("orca").addHandler(handler)

def net(config):
    return nn.Sequential(nn.Linear(4, 5000), nn.Linear(5000, 5000), nn.Linear(5000, 1))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

class Peak(Logger):
    # After an epoch all its checkpoints have arrived, and the final state has not.
    def epoch(self, record):
        self.value = peak()

x = np.random.default_rng(0).normal(size=(40, 4)).astype("f4")
init_orca_context(cores=2)
make = lambda model, **more: Estimator.from_torch(
    model=model, optimizer=torch.optim.SGD, loss=nn.MSELoss(), config={"lr": 1e-4, "momentum": 0.9}, workers=2,
    seed=0, sharded=True, **more)
make(nn.Linear(4, 1)).fit(x, x.sum(1), batch_size=20)
before, logger = peak(), Peak()
est = make(net, model_dir=sys.argv[1])
est.fit(x, x.sum(1), batch_size=8, checkpoint_trigger=2, callbacks=logger)
state = sum(value.nbytes for value in est.get_state_dict().values()) * 2 / 2**20
print(json.dumps({"before": before, "during": logger.value, "after": peak(), "state": state, "lines": lines}))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_checkpoints_in_parts_need_no_memory_of_the_driver(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEMORY), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    assert result["state"] > 190
    assert result["during"] - result["before"] < 0.2 * result["state"]
    assert result["lines"] == []
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-2", "checkpoint-4"]
