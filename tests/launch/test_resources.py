"""Resources of workers: each rank sees its own GPUs, and asking for more than there is fails at once."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.context import Context, init_orca_context
from orca.core.machine import visible_gpus
from orca.errors import ArgumentError, ResourceError
from orca.launch.resources import Resources

X = np.linspace(-1, 1, 24, dtype="f4").reshape(8, 3)


def make(**arguments: Any) -> Estimator:
    optimizer: Any = torch.optim.SGD
    return Estimator.from_torch(
        model=lambda config: nn.Linear(3, 1),
        optimizer=optimizer,
        loss=nn.MSELoss(),
        config={"lr": 0.1},
        seed=1,
        **arguments,
    )


def report(context: Any) -> Any:
    import os

    return context.place, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["OMP_NUM_THREADS"]


def test_local_ranks_see_their_own_gpus_and_use_as_many_threads_as_cpus(
    local: Context, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-abc,7,-1,8")
    est = make(workers=2, resources_per_worker={"CPU": 3, "GPU": 2})
    setup = est._setup
    results = local.gang(2, setup.preload, 0, setup.resources).call(report)
    assert [visible for _, visible, _ in results] == ["4,5", "GPU-abc,7"]
    assert [place.devices for place, *_ in results] == [("4", "5"), ("GPU-abc", "7")]
    assert [(place.threads, threads) for place, _, threads in results] == [(3, "3"), (3, "3")]
    text = est.explain()
    assert "2 of 2 slots" in text
    assert "3 threads each" in text
    assert "resources per worker: 3 CPU, 2 GPU; each rank sees only its own GPUs" in text
    assert "GPUs GPU-abc, 7" in text
    est.shutdown()
    assert "running" not in est.explain()
    # Without a request, nothing is hidden; zero hides all.
    assert local.gang(2, setup.preload).call(report)[1][1] == "4,5,GPU-abc,7,-1,8"
    assert local.gang(2, setup.preload, 0, Resources(gpus=0)).call(report)[1][1] == ""


def test_servers_see_no_gpu(local: Context, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    results = local.gang(3, (), 1, Resources(cpus=2, gpus=1)).call(report)
    assert [visible for _, visible, _ in results] == ["0", "1", ""]
    assert [place.threads for place, *_ in results][:2] == [2, 2]


def test_a_fit_with_resources_equals_one_without(local: Context, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plain, held = make(workers=2), make(workers=2, use_gpu=True)
    losses = [est.fit(X, X.sum(axis=1), epochs=2, batch_size=4)["loss"] for est in (plain, held)]
    assert losses[0] == losses[1]
    held.set_params(use_gpu=False, resources_per_worker={"CPU": 1})
    assert held.epoch == 2  # what was learned stays


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            {"workers": 3, "use_gpu": True},
            ["workers=3 with 1 CPU, 1 GPU each", "room for 2 such workers", "6 CPU, 2 GPU", "CUDA_VISIBLE_DEVICES"],
        ),
        (
            {"workers": 2, "resources_per_worker": {"CPU": 4}},
            ["workers=2 with 4 CPU each", "room for 1 such worker:", "cores=8"],
        ),
        ({"resources_per_worker": {"npu": 1}}, ["room for 0", "Name only CPU and GPU", "'npu'"]),
    ],
)
def test_more_than_this_machine_has_is_refused_with_numbers(
    arguments: dict[str, Any], parts: list[str], local: Context, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    est = make(**arguments)
    assert "will not start: the local runtime has room" in est.explain()
    began = time.monotonic()
    with pytest.raises(ResourceError) as caught:
        est.fit(X, X.sum(axis=1))
    assert time.monotonic() - began < 1
    for part in parts:
        assert part in str(caught.value)


def test_contradictions_and_models_without_gpus_are_refused():
    with pytest.raises(ArgumentError, match=r'use_gpu=True and resources_per_worker={"GPU": 0} contradict'):
        make(use_gpu=True, resources_per_worker={"GPU": 0})
    with pytest.raises(ArgumentError, match=r"use_gpu=True: backend='parameter_server' with servers .* the CPU"):
        make(use_gpu=True, backend="parameter_server", mode="async")
    assert make(use_gpu=True, resources_per_worker={"CPU": 2})._setup.resources == Resources(2, 1)


def test_visible_gpus_follow_cuda(monkeypatch: pytest.MonkeyPatch):
    for text, ids in {"": [], "-1": [], "NoDevFiles": [], " 3 , 1": ["3", "1"], "0,-1,2": ["0"]}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert visible_gpus() == ids


def test_a_runtime_that_reserves_nothing_refuses(monkeypatch: pytest.MonkeyPatch):
    from orca.launch.local import LocalLauncher

    monkeypatch.setattr(LocalLauncher, "reserves", False)
    with init_orca_context(cores=2), pytest.raises(ResourceError, match="reserves no resources. Leave out"):
        make(resources_per_worker={"CPU": 1}).fit(X, X.sum(axis=1))


JOB = """
import json, os, sys, time
import numpy as np, torch
from torch import nn
from orca import Estimator, init_orca_context, stop_orca_context
from orca.context import current
from orca.errors import ResourceError
from orca.launch.resources import Resources

X = np.linspace(-1, 1, 24, dtype="f4").reshape(8, 3)

def report(context):
    import os
    place = context.place
    return place.rank, place.local_rank, place.threads, os.environ["ORCA_HOST_ID"], os.environ["CUDA_VISIBLE_DEVICES"]

def make(**arguments):
    return Estimator.from_torch(model=lambda config: nn.Linear(3, 1), optimizer=torch.optim.SGD, loss=nn.MSELoss(),
                                seed=1, config={"lr": 0.1}, **arguments)

def ranks(est):
    setup = est._setup
    return current().gang(setup.topology.ranks, setup.preload, setup.servers, setup.resources).call(report)

def refused(**arguments):
    est = make(**arguments)
    began = time.monotonic()
    try:
        est.fit(X, X.sum(axis=1))
    except ResourceError as error:
        return time.monotonic() - began, str(error), est.explain()

def loss(est):
    return est.fit(X, X.sum(axis=1), epochs=1, batch_size=4)["loss"]
"""


def run(code: str, tmp_path: Path, **environment: str) -> dict[str, Any]:
    """Run the job in a driver of its own and return the result that it wrote."""
    out, script = tmp_path / "result.json", tmp_path / "job.py"
    script.write_text(JOB + textwrap.dedent(code) + f"\njson.dump(result, open({str(out)!r}, 'w'))\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, "PYTHONPATH": os.getcwd(), **environment},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(out.read_text()))


def check_ranks(ranks: list[list[Any]], hosts: int, threads: int) -> None:
    """Check that each rank sees one GPU, a different one from all others of its host."""
    print(*ranks, sep="\n")
    seen = [(host, visible) for _, _, _, host, visible in ranks]
    assert len(set(seen)) == len(seen) == 4
    assert len({host for host, _ in seen}) == hosts
    assert all(visible.isdecimal() for _, visible in seen), "one id for each rank"
    assert {found for _, _, found, *_ in ranks} == {threads}


def check_refused(answer: list[Any], *parts: str) -> None:
    seconds, message, explained = answer
    print(f"{seconds:.2f} s: {message}")
    assert seconds < 2
    for part in parts:
        assert part in message
    assert "will not start" in explained


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ray_gives_each_rank_its_own_gpu_and_frees_it_after_the_call(tmp_path: Path):
    result = run(
        """
        import ray
        from ray.cluster_utils import Cluster
        node = {"num_cpus": 4, "num_gpus": 2, "resources": {"license": 1}}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "env_vars": {"ORCA_HOST_ID": "a"}})
        cluster.add_node(**node, env_vars={"ORCA_HOST_ID": "b"})
        cluster.wait_for_nodes()
        init_orca_context(runtime="ray", address=cluster.address)

        def free():
            available = ray.available_resources()
            return {name: available.get(name, 0) for name in ("CPU", "GPU", "license")}

        def held(context):
            import ray
            context.allgather(None)
            own = ray.get_runtime_context().get_assigned_resources()
            return {name: own.get(name, 0) for name in ("CPU", "GPU", "license")}, free()

        est = make(workers=4, resources_per_worker={"CPU": 2, "GPU": 1})
        result = {"ranks": ranks(est), "loss": loss(est), "explained": est.explain()}
        custom = make(workers=2, resources_per_worker={"license": 1})._setup
        result["held"] = current().gang(2, custom.preload, 0, custom.resources).call(held)
        end = time.monotonic() + 20
        while (after := free()) != {"CPU": 8, "GPU": 4, "license": 2} and time.monotonic() < end:
            time.sleep(0.2)
        result["after"] = after
        result["refused"] = [refused(workers=5, use_gpu=True), refused(workers=1, resources_per_worker={"GPU": 3}),
                             refused(workers=3, resources_per_worker={"license": 1})]
        result["hidden"] = ranks(make(workers=2, resources_per_worker={"GPU": 0, "CPU": 3}))
        stop_orca_context()
        cluster.shutdown()
        """,
        tmp_path,
    )
    check_ranks(result["ranks"], hosts=2, threads=2)
    assert sorted(visible for *_, visible in result["ranks"]) == ["0", "0", "1", "1"]
    assert len(result["loss"]) == 1  # the second call finds the resources free
    assert "resources per worker: 2 CPU, 1 GPU" in result["explained"]
    (first, during), (second, _) = result["held"]
    assert first == second == {"CPU": 1, "GPU": 0, "license": 1}
    assert (during["CPU"], during["license"]) == (6, 0)
    assert result["after"] == {"CPU": 8, "GPU": 4, "license": 2}
    check_refused(result["refused"][0], "workers=5 with 1 CPU, 1 GPU each", "room for 4", "4 CPU, 2 GPU on")
    check_refused(result["refused"][1], "1 CPU, 3 GPU each", "room for 0 such workers", "2 GPU on")
    check_refused(result["refused"][2], "1 license each", "room for 2 such workers", "1 license on")
    assert [(threads, visible) for _, _, threads, _, visible in result["hidden"]] == [(3, "")] * 2


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_spark_gives_each_rank_its_own_gpu(tmp_path: Path):
    script = tmp_path / "find_gpus.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0", "1"]}'\n""")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    result = run(
        f"""
        conf = {{
            "spark.worker.resource.gpu.amount": 2, "spark.worker.resource.gpu.discoveryScript": {str(script)!r},
            "spark.executor.resource.gpu.amount": 2, "spark.executor.resource.gpu.discoveryScript": {str(script)!r},
        }}
        init_orca_context(runtime="spark", master="local-cluster[2,4,1024]", conf=conf)
        import orca.launch.spark as spark
        plain = spark._rank_task
        def apart(*args):
            inner = plain(*args)
            def run_apart(records):
                # Each executor acts as a separate host.
                import os
                os.environ["ORCA_HOST_ID"] = "executor " + str(os.getppid())
                yield from inner(records)
            return run_apart
        spark._rank_task = apart
        est = make(workers=4, resources_per_worker={{"CPU": 2, "GPU": 1}})
        result = {{"ranks": ranks(est), "loss": loss(est)}}
        result["refused"] = [refused(workers=5, use_gpu=True), refused(resources_per_worker={{"GPU": 3}}),
                             refused(workers=5, resources_per_worker={{"CPU": 2}}),
                             refused(resources_per_worker={{"fpga": 1}}), refused(resources_per_worker={{"CPU": 5}})]
        stop_orca_context()
        init_orca_context(runtime="spark", cores=4, conf={{"spark.task.cpus": 2}})
        result["local"] = [refused(use_gpu=True), refused(workers=2, resources_per_worker={{"CPU": 3}}),
                           refused(workers=3, resources_per_worker={{"CPU": 2}})]
        stop_orca_context()
        """,
        tmp_path,
    )
    check_ranks(result["ranks"], hosts=2, threads=2)
    assert sorted(visible for *_, visible in result["ranks"]) == ["0", "0", "1", "1"]
    assert len(result["loss"]) == 1  # the second call finds the resources free
    check_refused(result["refused"][0], "workers=5 with 1 CPU, 1 GPU each", "room for 4", "2 executors", "2 gpu each")
    check_refused(result["refused"][1], "each worker needs 3 gpu, and an executor has 2", "discoveryScript")
    check_refused(result["refused"][2], "workers=5 with 2 CPU each", "room for 4 such workers", "8 cores in total")
    check_refused(result["refused"][3], "each worker needs 1 fpga, and an executor has 0")
    check_refused(result["refused"][4], "workers=1 with 5 CPU each")
    check_refused(result["local"][0], "1 GPU each", "Start Spark with spark.")
    check_refused(result["local"][1], "spark.task.cpus=2. Start Spark with spark.task.cpus=3")
    check_refused(result["local"][2], "workers=3 with 2 CPU each", "room for 2 such workers")
