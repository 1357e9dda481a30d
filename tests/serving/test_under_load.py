"""Many clients at once: nobody gets another's numbers, and models, processes and servers change without a failure."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from orca.store import Store
from tests.serving import models
from tests.serving.servers import Client, Server, binary, in_threads, raw_outputs, serving, tensor, wait_for

CLIENTS = 16


def mixed_requests(port: int, client_number: int, count: int) -> tuple[int, int]:
    """Send good and wrong-shaped requests; check every answer. Return how many of each there were."""
    random = np.random.default_rng(client_number)
    matrix = models.weights(3, 64, 10)
    good = wrong = 0
    with contextlib.closing(Client(port)) as client:
        for _ in range(count):
            rows = int(random.integers(1, 4))
            features = int(random.choice([64, 64, 2, 63, 65, 128]))
            x = random.standard_normal((rows, features)).astype("f4")
            if random.random() < 0.5:
                answer = client.ask("POST", "/v2/models/wide/infer", {"inputs": [tensor("x", x)]})
                result = np.array(answer.json["outputs"][0]["data"]) if answer.status == 200 else None
            else:
                body, headers = binary([("x", x.shape, "FP32", x.tobytes())], parameters={"binary_data_output": True})
                answer = client.ask("POST", "/v2/models/wide/infer", body, headers)
                result = raw_outputs(answer)[0] if answer.status == 200 else None
            if features == 64:
                assert result is not None, answer.body
                np.testing.assert_allclose(result.reshape(rows, 10), x @ matrix, rtol=1e-3, atol=1e-3)
                good += 1
            else:
                assert answer.status == 400, answer.body
                wrong += 1
    return good, wrong


@pytest.mark.parametrize("join", ["64", "1"])
def test_a_thousand_mixed_requests_get_their_own_answers(store: Any, join: str):
    with serving(store.path, "--model", "wide", "--join", join) as server:
        counts = in_threads(CLIENTS, lambda index: mixed_requests(server.port, index, 63))
        text = server.ask("GET", "/metrics").body.decode()
    assert sum(good + wrong for good, wrong in counts) >= 1000
    assert all(good and wrong for good, wrong in counts)
    batches = re.search(r'orca_batch_rows_count\{model="wide"\} ([\d.]+)', text)
    assert batches is not None
    answered = sum(good for good, _ in counts)
    if join == "1":
        assert float(batches[1]) == answered
    else:
        assert float(batches[1]) < answered, "no requests were joined"


def test_rows_that_depend_on_each_other_are_never_joined(server: Server):
    def ask(index: int) -> None:
        with contextlib.closing(server.client()) as client:
            for _ in range(20):
                x = np.full((2, 4), index, "f4") + [[0], [1]]
                reply = client.ask("POST", "/v2/models/together/infer", {"inputs": [tensor("x", x)]}).json
                assert reply["outputs"][0]["data"] == [-0.5] * 4 + [0.5] * 4

    in_threads(6, ask)


def test_an_alias_moves_twenty_times_without_a_failed_request(tmp_path: Path):
    om = Store(tmp_path / "store")
    for number in (1, 2, 3):
        om.models.put(models.constant(number), "constant", tag="live" if number == 1 else None)
    done = threading.Event()
    body = {"inputs": [tensor("x", np.ones((1, 4), "f4"))]}

    def ask(index: int) -> set[str]:
        seen = set()
        with contextlib.closing(server.client()) as client:
            while not done.is_set():
                answer = client.ask("POST", "/v2/models/constant/infer", body)
                assert answer.status == 200, answer.body
                reply = answer.json
                assert reply["outputs"][0]["data"] == [float(reply["model_version"])]
                seen.add(reply["model_version"])
        return seen

    def switch() -> None:
        with contextlib.closing(server.client()) as client:
            for turn in range(20):
                number = (turn + 1) % 3 + 1
                om.models.alias(f"constant@{number}", "live")
                wait_for(
                    lambda number=number: (
                        client.ask("POST", "/v2/models/constant/infer", body).json["model_version"] == str(number)
                    ),
                    20,
                    f"switch {turn}",
                )
        done.set()

    def work(index: int) -> set[str]:
        if index < CLIENTS:
            return ask(index)
        try:
            switch()
        finally:
            done.set()
        return set()

    with serving(om.path, "--model", "constant@live", "--poll", "0.05") as server:
        seen = in_threads(CLIENTS + 1, work)
        text = server.ask("GET", "/metrics").body.decode()
    assert 'orca_model_switches_total{model="constant"} 20.0' in text
    assert set().union(*seen) == {"1", "2", "3"}


def test_a_killed_process_is_replaced_and_sigterm_finishes_running_requests(store: Any):
    body = {"inputs": [tensor("x", np.ones((1, 64), "f4"))]}
    with serving(store.path, "--workers", "2", "--model", "linear", "--model", "slow") as server:
        supervisor = psutil.Process(server.process.pid)
        first = {process.pid for process in supervisor.children()}
        assert len(first) == 2
        victim, other = first
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        assert server.ask("POST", "/v2/models/linear/infer", body).status == 200  # the other one answers
        os.kill(other, signal.SIGSTOP)  # from here on, only a new process can
        try:
            wait_for(lambda: answers(server, body), 6, "a new process answers")
            assert time.monotonic() - killed < 3
        finally:
            os.kill(other, signal.SIGCONT)
        assert len({process.pid for process in supervisor.children()} - first) == 1
        task = server.ask("PUT", "/api/v1/model/linear/predict?async=1", {"data": [{"x": [1.0] * 64}]})
        location = task.headers["location"]
        for _ in range(10):  # any process knows the task
            wait_for(lambda: server.ask("GET", location).json["status"] == "SUCCESS", 5, "the result of the task")
        for _ in range(20):
            assert answers(server, body)
        wait_for(lambda: answered(server) >= 20, 10, "all processes count together")
        check_draining(server)
        assert supervisor.is_running() is False


def answered(server: Server) -> float:
    text = server.ask("GET", "/metrics").body.decode()
    return sum(map(float, re.findall(r'orca_requests_total\{model="linear".*status="200"\} ([\d.]+)', text)))


def answers(server: Server, body: Any) -> bool:
    with contextlib.closing(server.client(timeout=0.5)) as client:
        try:
            return client.ask("POST", "/v2/models/linear/infer", body).status == 200
        except TimeoutError:
            return False


def check_draining(server: Server) -> None:
    slow = {
        "inputs": [tensor("x", np.ones((1, 1500), "f4")), tensor("steps", np.array(8000), "INT32") | {"data": [8000]}]
    }
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(server.ask("POST", "/v2/models/slow/infer", slow)))
    thread.start()
    time.sleep(0.3)
    assert not answers, "the request was too short to be interrupted"
    assert server.stop() == 0
    thread.join(30)
    assert [answer.status for answer in answers] == [200]


def test_processes_end_with_their_supervisor(store: Any):
    server = Server(store.path, "--workers", "2", "--model", "linear")
    children = psutil.Process(server.process.pid).children()
    server.process.kill()
    server.process.wait()
    gone, alive = psutil.wait_procs(children, 10)
    assert (len(gone), alive) == (2, [])


def test_served_models_stay_when_the_store_is_away_and_it_comes_back(tmp_path: Path):
    om = Store(tmp_path / "store")
    om.models.put(models.constant(1), "constant")
    body = {"inputs": [tensor("x", np.ones((1, 4), "f4"))]}
    with serving(om.path, "--model", "constant", "--poll", "0.1") as server:
        away = tmp_path / "away"
        shutil.move(tmp_path / "store", away)

        def state() -> str:
            return str(server.ask("GET", "/v2/health/ready").json["store"])

        wait_for(lambda: state() == "unreachable", 10, "the server notices")
        assert server.ask("GET", "/v2/health/ready").status == 200
        assert server.ask("POST", "/v2/models/constant/infer", body).json["outputs"][0]["data"] == [1.0]
        assert "orca_store_up 0.0" in server.ask("GET", "/metrics").body.decode()
        shutil.move(away, tmp_path / "store")
        wait_for(lambda: state() == "reachable", 10, "the server notices that it is back")
        Store(om.path).models.put(models.constant(2), "constant")
        wait_for(
            lambda: server.ask("POST", "/v2/models/constant/infer", body).json["model_version"] == "2", 10, "version 2"
        )


def test_a_damaged_version_does_not_take_over(tmp_path: Path):
    om = Store(tmp_path / "store")
    om.models.put(models.constant(1), "constant", tag="live")
    second = om.models.put(models.constant(2), "constant")
    path = om.models.ir_path(second).with_suffix(".bin")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    body = {"inputs": [tensor("x", np.ones((1, 4), "f4"))]}
    with serving(om.path, "--model", "constant@live", "--poll", "0.1") as server:
        om.models.alias("constant@2", "live")
        wait_for(lambda: "model.bin" in server.log, 10, "the log names the file")
        assert server.ask("POST", "/v2/models/constant/infer", body).json["model_version"] == "1"
        assert server.ask("GET", "/v2/health/ready").json["problems"] == 1
    with pytest.raises(RuntimeError, match="model.bin"):
        Server(om.path, "--model", "constant@2")
