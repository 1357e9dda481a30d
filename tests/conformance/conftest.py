"""Which backend runs which check on which runtime, and the table of all cells at the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from orca.context import Context, current, init_orca_context
from orca.testing import (
    ADAPTER_CHECKS,
    BACKEND_CHECKS,
    AdapterCase,
    BackendCase,
    Check,
    FaultResult,
    NotApplicable,
    Result,
    fault_table,
    table,
)
from orca.testing.fault_matrix import perform_fault
from orca.testing.host_clusters import Driver, RayHosts, SparkHosts, await_slots
from orca.testing.hosts import Hosts, unavailable
from orca.testing.report import FAILED, PASSED, SKIPPED
from tests.conformance.fault_cells import FaultCell, all_cells, sample_of
from tests.conftest import SLOTS

SMOKE = ("empty_shard", "learns_asynchronously")
"""The checks on clusters of backends that are not the first of their framework."""
FEWER_WORKERS = {"even_shards": (1, 3), "uneven_shards": (2,), "last_batch_of_one": (1, 2)}
"""Numbers of workers for frameworks that take long to build a model; for all other checks three."""
FAST = ("exact_scores", "predict_arrays")
"""What the fast part of the suite runs of such frameworks, beside the smoke checks."""
HOST_CLUSTERS = {"ray": RayHosts, "spark": SparkHosts}
RESULTS = pytest.StashKey[list[Result]]()
FAULT_RESULTS = pytest.StashKey[list[FaultResult]]()


@dataclass(frozen=True)
class Cell:
    """One check of one backend, or of one kind of data, on one runtime."""

    runtime: str
    case: BackendCase | AdapterCase
    check: Check
    slow: bool = False
    """Whether the fast part of the suite leaves it out."""

    def param(self) -> object:
        marks = [] if self.runtime == "local" else [getattr(pytest.mark, self.runtime)]
        marks += [pytest.mark.horovod] if self.case.name.endswith(".horovod") else []
        marks += [pytest.mark.slow] if self.slow else []
        return pytest.param(
            self, marks=marks, id=f"{self.runtime}-{self.case.title}-{self.check.name}".replace(" ", "_")
        )


def cells(module: object, matrix: bool) -> list[Cell]:
    """Return the cells of a module, which has PLAIN cases, VARIANTS with their checks, and perhaps MAIN and SLOW.

    By default all checks of the plain cases run locally. On clusters the main case, the first, runs the checks that
    may depend on the cluster, the others one check. A matrix runs everywhere what otherwise runs locally.
    """
    chosen = {case: list(BACKEND_CHECKS) for case in module.PLAIN} | module.VARIANTS
    main, slow = getattr(module, "MAIN", module.PLAIN[0]), getattr(module, "SLOW", False)
    found = []
    for runtime in ("local", "ray", "spark"):
        for case, names in chosen.items():
            for name in names:
                check = BACKEND_CHECKS[name]
                asked = matrix or runtime == "local" or (check.remote if case is main else name in SMOKE)
                if asked and not check.reason(case):
                    fast = name in SMOKE or (case is main and (not slow or name in FAST))
                    smaller = case if matrix else _smaller(case, runtime, name, slow)
                    found.append(Cell(runtime, smaller, check, not fast))
    return found


def _smaller(case: BackendCase, runtime: str, check: str, slow: bool) -> BackendCase:
    """Return the case with fewer numbers of workers, where starting them or building the model takes long."""
    if runtime == "local":
        return dataclasses.replace(case, workers=FEWER_WORKERS.get(check, (3,))) if slow else case
    return dataclasses.replace(case, workers=(2,) if slow else (3,))


def adapter_cells(module: object) -> list[Cell]:
    """Return the cells of a module that has kinds of data as ADAPTERS by runtime."""
    return [
        Cell(runtime, case, check)
        for runtime, cases in module.ADAPTERS.items()
        for case in cases
        for check in ADAPTER_CHECKS.values()
        if not check.reason(case)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        module, matrix = metafunc.module, metafunc.config.getoption("--matrix")
        found = adapter_cells(module) if hasattr(module, "ADAPTERS") else cells(module, matrix)
        metafunc.parametrize("cell", [cell.param() for cell in found])
    if "fault_cell" in metafunc.fixturenames:
        module, matrix = metafunc.module, metafunc.config.getoption("--matrix")
        everything = all_cells(module.FAULT_CASES, module.FIRST)
        chosen = [cell for cell in everything if not cell.reason] if matrix else sample_of(everything, module.SAMPLE)
        metafunc.parametrize("fault_cell", [cell.param() for cell in chosen])
        if matrix:
            noted = metafunc.config.stash.setdefault(FAULT_RESULTS, [])
            noted.extend(cell.skipped() for cell in everything if cell.reason)


@pytest.fixture
def cell_context(cell: Cell, request: pytest.FixtureRequest) -> Context:
    """The context of a cell's runtime; its gangs stay warm for the next cell."""
    return joined(cell.runtime, request)


def joined(runtime: str, request: pytest.FixtureRequest) -> Context:
    """The context of a runtime, which is started once."""
    if runtime == "ray":
        request.getfixturevalue("ray_cluster")
    elif runtime == "spark":
        request.getfixturevalue("spark_session")
    return init_orca_context(runtime=runtime, cores=SLOTS)


@dataclass
class HostCluster:
    """Two hosts, a cluster on them and a driver on the first."""

    hosts: Hosts
    started: RayHosts | SparkHosts
    driver: Driver


@pytest.fixture(scope="module", params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in HOST_CLUSTERS])
def cluster(request: pytest.FixtureRequest) -> Iterator[HostCluster]:
    """A cluster on two hosts, each in turn."""
    if unavailable():
        pytest.skip(unavailable())
    with Hosts(2) as hosts:
        started = HOST_CLUSTERS[request.param](hosts)
        with Driver(hosts[0], started.options) as driver:
            driver.run(await_slots, 2)
            yield HostCluster(hosts, started, driver)


@pytest.fixture(autouse=True, scope="module")
def stop_warm_gangs() -> Iterator[None]:
    yield
    current().stop_gangs()


@pytest.fixture
def perform(request: pytest.FixtureRequest):
    """Run a check, skip what does not apply, and note the result for the table."""

    def run(check: Check, subject: object, *args: object, name: str, runtime: str) -> None:
        began, outcome, detail = time.monotonic(), FAILED, ""
        try:
            check(subject, *args)
            outcome = PASSED
        except NotApplicable as reason:
            outcome, detail = SKIPPED, str(reason)
            pytest.skip(detail)
        finally:
            result = Result(check.name, time.monotonic() - began, outcome, detail, name, runtime)
            request.config.stash.setdefault(RESULTS, []).append(result)

    return run


@pytest.fixture
def strike(request: pytest.FixtureRequest):
    """Run a cell of the fault matrix, and note the result for the table."""

    def run(cell: FaultCell) -> None:
        context = joined(cell.runtime, request)
        result = perform_fault(cell.kind, cell.phase, cell.case, context, cell.first)
        request.config.stash.setdefault(FAULT_RESULTS, []).append(result)
        if result.outcome == SKIPPED:
            pytest.skip(result.detail)
        assert result.outcome == PASSED, result.detail

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash.get(RESULTS, [])
    if results:
        terminalreporter.section("conformance: checks and seconds")
        terminalreporter.write_line(table(results))
    faults = config.stash.get(FAULT_RESULTS, [])
    if any(result.outcome != SKIPPED for result in faults):
        terminalreporter.section("faults: cells, and seconds from the fault to the end of the call")
        terminalreporter.write_line(fault_table(faults))
