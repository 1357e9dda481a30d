"""Resources of Spark tasks: a profile for one stage where the cluster allows it, else the session's own settings."""

from __future__ import annotations

from typing import Any

from orca.launch.resources import Resources

_WITH_PROFILES = ("spark://", "local-cluster[", "yarn", "k8s://")
"""Masters whose executors serve stages with different task resources."""
_profiles: dict[tuple[str, Resources], Any] = {}
"""Profiles by application: Spark keeps each one that it has seen for as long as the application runs."""


def spark_names(resources: Resources) -> dict[str, float]:
    """Return the amounts beside CPUs under Spark's names.

    >>> spark_names(Resources(cpus=2, gpus=1, others=(("fpga", 2.0),)))
    {'gpu': 1.0, 'fpga': 2.0}
    """
    names = {"gpu" if name == "GPU" else name: amount for name, amount in resources.amounts.items()}
    del names["CPU"]
    return names


class TaskResources:
    """What the tasks of one gang ask Spark for."""

    def __init__(self, context: Any, resources: Resources) -> None:
        self._context = context
        self._resources = resources
        self._conf = context.getConf()

    @property
    def profile(self) -> Any:
        """The profile of the stage; None to leave the tasks to the session's settings."""
        if not self._resources.named or not self._context.master.startswith(_WITH_PROFILES):
            return None
        key = self._context.applicationId, self._resources
        if key not in _profiles:
            from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

            requests = TaskResourceRequests().cpus(self._resources.cpus or self._task_cpus())
            for name, amount in spark_names(self._resources).items():
                requests.resource(name, amount)
            profile = ResourceProfileBuilder().require(requests).build
            self._context._jsc.sc().resourceProfileManager().addResourceProfile(profile._java_resource_profile)
            _profiles[key] = profile
        return _profiles[key]

    def obstacle(self) -> str:
        """Say why such tasks can never run in this session, and what to do; return an empty text if they can."""
        for name, amount in spark_names(self._resources).items():
            setting = f"spark.executor.resource.{name}.amount"
            available = float(self._conf.get(setting, "0"))
            if amount > available:
                return (
                    f"each worker needs {amount:g} {name}, and an executor has {available:g}. Start Spark with "
                    f"{setting} and spark.executor.resource.{name}.discoveryScript, on workers that offer it."
                )
        if self._resources.gpus and self._conf.get("spark.python.worker.reuse", "true") == "true":
            return (
                "Spark would use a Python process again that has other GPUs. Start Spark with "
                "spark.python.worker.reuse=false."
            )
        try:
            if self._resources.named and self.profile is None:
                return self._differing_settings()
        except Exception as error:  # of Java: an executor has fewer cores than a task needs
            cause = str(getattr(error, "java_exception", error)).partition(": ")[2] or str(error)
            return f"{cause.splitlines()[0].rstrip('.')}. Use fewer resources for each worker, or larger executors."
        return ""

    def slots(self) -> int:
        """Return how many such tasks the registered executors can run at once."""
        if self.obstacle():
            return 0
        context = self._context._jsc.sc()
        profile = self.profile
        java = context.resourceProfileManager().defaultResourceProfile() if profile is None else None
        return int(context.maxNumConcurrentTasks(java or profile._java_resource_profile))

    def inventory(self) -> str:
        """Say what the executors have, after a colon."""
        executors = max(1, self._context._jsc.sc().getExecutorMemoryStatus().size() - 1)
        if self._context.master.startswith("local["):
            return ""
        cores = int(self._context.defaultParallelism)
        settings = {name: f"spark.executor.resource.{name}.amount" for name in spark_names(self._resources)}
        each = "".join(f", {self._conf.get(setting, '0')} {name} each" for name, setting in settings.items())
        return f": {executors} executor{'s' if executors > 1 else ''}, {cores} cores in total{each}"

    def _task_cpus(self) -> int:
        return int(float(self._conf.get("spark.task.cpus", "1")))

    def _differing_settings(self) -> str:
        """Say which settings of the session differ from what each worker needs."""
        needed = {f"spark.task.resource.{name}.amount": amount for name, amount in spark_names(self._resources).items()}
        if self._resources.cpus is not None:
            needed["spark.task.cpus"] = float(self._resources.cpus)
        for setting, amount in needed.items():
            default = "1" if setting == "spark.task.cpus" else "0"
            if float(self._conf.get(setting, default)) != amount:
                return (
                    f"the master {self._context.master} has the same resources for all tasks, and "
                    f"{setting}={self._conf.get(setting, default)}. Start Spark with {setting}={amount:g}, or use a "
                    "cluster."
                )
        return ""


def task_devices() -> tuple[str, ...]:
    """Return, inside of a task, the ids of the GPUs that Spark has given to it."""
    from pyspark import TaskContext

    context = TaskContext.get()
    granted = context.resources().get("gpu") if context is not None else None
    return () if granted is None else tuple(map(str, granted.addresses))
