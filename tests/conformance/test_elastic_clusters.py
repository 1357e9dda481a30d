"""Clusters that lose a host: the run continues without it, grows when it is back, and the result is exact."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

JOB = """
import json, logging, os, signal, sys, time
import numpy as np
from torch import nn
from orca import Estimator, init_orca_context, stop_orca_context
from orca.callbacks import Callback, Logger
from orca.context import current
from tests.conformance.models import make_data, model_creator, optimizer_creator

LIMIT = 150

class Slow(Callback):
    # Epochs last long enough to lose and regain a host within the run.
    acts_on_batches = False
    def __init__(self, done):
        self.done = done
    def after_batch(self, run):
        if not os.path.exists(self.done):
            time.sleep(0.05)

class Script(Logger):
    # Runs the next step of the script when the number of workers is what it waits for.
    def __init__(self, done, steps):
        self.done, self.steps, self.began = done, list(steps), time.monotonic()
    def epoch(self, record):
        assert time.monotonic() - self.began < LIMIT, f"{self.steps} left after {LIMIT} s"
        if self.steps and len(lines) >= self.steps[0][0]:
            events[f"step {len(events)} of the script"] = time.monotonic()
            self.steps.pop(0)[1]()
        if not self.steps and not os.path.exists(self.done):
            open(self.done, "w").close()

lines, times, events = [], [], {}
handler = logging.Handler()
handler.emit = lambda record: (lines.append(record.getMessage()), times.append(time.monotonic()))
logging.getLogger("orca").addHandler(handler)

def make():
    return Estimator.from_torch(
        model=model_creator, optimizer=optimizer_creator, loss=nn.CrossEntropyLoss(), config={"lr": 0.01}, workers=2,
        seed=7,
    )

def compare(folder, failures, *steps):
    # Train undisturbed and with the script; return changes and the largest relative difference of weights.
    x, y = make_data(77)
    whole, est = make(), make()
    done = os.path.join(folder, "done")
    expected = whole.fit(x, y, epochs=EPOCHS, batch_size=12)
    options = {"max_failures": failures, "min_workers": 1, "checkpoint_trigger": 5}
    began = time.monotonic()
    script = Script(done, steps)
    history = est.fit(x, y, epochs=EPOCHS, batch_size=12, callbacks=[script, Slow(done)], **options)
    seconds = time.monotonic() - began
    for name, value in whole.get_state_dict().items():
        np.testing.assert_allclose(est.get_state_dict()[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    worst = max(float((est.get_state_dict()[k] / v - 1).abs().max()) for k, v in whole.get_state_dict().items())
    assert history["epoch"] == expected["epoch"]
    moments = {**events, **{line[:50]: moment for line, moment in zip(lines, times)}}
    moments = {name: round(moment - began, 1) for name, moment in moments.items()}
    return {"changes": history.changes, "lines": lines, "worst": worst, "seconds": seconds, "moments": moments}
"""


def run(code: str, tmp_path: Any) -> dict[str, Any]:
    """Run the job in a separate driver and return the result that it wrote."""
    out, script = tmp_path / "result.json", tmp_path / "job.py"
    head = f"FOLDER = {str(tmp_path)!r}\nEPOCHS = 150\n"
    script.write_text(head + JOB + textwrap.dedent(code) + f"\njson.dump(result, open({str(out)!r}, 'w'))\n")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with open(tmp_path / "log", "wb") as log:
        command = [sys.executable, str(script)]
        driver = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        code = driver.wait(230)
    finally:
        # The processes of the cluster belong to its group, and must not outlive a driver that hangs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
    assert code == 0, (tmp_path / "log").read_text()[-4000:]
    result = dict(json.loads(out.read_text()))
    print(json.dumps(result, indent=1))
    return result


def check(lines: list[str], result: dict[str, Any]) -> None:
    """Require one line for each change, in the log and in the history."""
    assert lines == result["changes"]
    assert [line[:33] for line in lines] == [f"fit continues with {n} of 2 workers" for n in (1, 2)]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_ray_node_that_dies_and_comes_back_changes_nothing_but_the_number_of_workers(tmp_path):
    result = run(
        """
        import ray
        from ray.cluster_utils import Cluster
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        init_orca_context(runtime="ray", address=cluster.address)

        def kill_rank():
            gang = current().warm(2, make().backend.traits.preload)
            os.kill(gang.places[1].pid, signal.SIGKILL)

        def kill_node():
            # Its ranks end with it; Ray itself gives up the node only after many missed heartbeats.
            os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

        result = compare(
            FOLDER, 2, (0, kill_rank), (2, kill_node), (3, lambda: cluster.add_node(num_cpus=1)), (4, lambda: None)
        )
        stop_orca_context()
        cluster.shutdown()
        """,
        tmp_path,
    )
    killed, restarted, *changes = result["lines"]
    assert "rank 1 on" in killed
    assert restarted.startswith("restarting after step")
    check(changes, result)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_spark_worker_that_dies_and_comes_back_changes_nothing_but_the_number_of_workers(tmp_path):
    result = run(
        """
        import pyspark, socket, subprocess
        home = os.path.dirname(pyspark.__file__)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        master = f"spark://127.0.0.1:{port}"
        started = []

        def start(name, *arguments):
            command = [os.path.join(home, "bin", "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
            environment = {**os.environ, "SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}
            log = open(os.path.join(FOLDER, f"{len(started)}.log"), "wb")
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            return started[-1]

        def start_worker():
            work = os.path.join(FOLDER, f"work{len(started)}")
            options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", work)
            return start("worker.Worker", *options, master)

        try:
            start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
            first, second = start_worker(), start_worker()
            conf = {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
            init_orca_context(runtime="spark", cluster_mode="standalone", master=master, memory="1g", conf=conf)
            result = compare(FOLDER, 1, (0, second.kill), (1, start_worker), (2, lambda: None))
            stop_orca_context()
        finally:
            for process in reversed(started):
                process.kill()
                process.wait()
        """,
        tmp_path,
    )
    check(result["lines"], result)
