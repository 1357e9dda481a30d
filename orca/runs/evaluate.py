"""The driver's side of `evaluate` and `score`."""

from __future__ import annotations

from collections.abc import Sequence

from orca.backends.worker.scoring import evaluate_on_rank
from orca.callbacks import less_is_better
from orca.core.arguments import check_count
from orca.metrics import Metric
from orca.runs.progress import ProgressBar
from orca.runs.ranks import gang_of, job_of, remember
from orca.runs.rows import form_of, reading_ranks, stored
from orca.runs.values import Learned, RowsRequest, Setup
from orca.runtimes.context import Context
from orca.shards.on_rank import SentSource
from orca.shards.orders import ScoredRows


def evaluate(
    setup: Setup,
    learned: Learned,
    request: RowsRequest,
    batch_size: int,
    context: Context,
    metrics: Sequence[Metric] | None = None,
) -> dict[str, float]:
    """Return loss and metrics over all rows."""
    setup.backend.check_evaluate(setup.spec)
    batch_size = check_count("batch_size", batch_size)
    gang = gang_of(setup, context)
    need_labels = setup.backend.framework.needs_labels_to_evaluate(setup.spec)
    form = form_of(setup, request, batch_size, need_labels=need_labels)
    with stored(request.data, form, context.engine) as rows, gang.lock:
        bar = ProgressBar(0, show=False)
        fetched = isinstance(rows, SentSource)
        job = job_of(setup, learned, gang, metrics)
        results: list[dict[str, float]] = gang.call(
            evaluate_on_rank,
            job,
            batch_size,
            fetched,
            sources={"data": rows},
            needs={} if fetched else {"data": ScoredRows(reading_ranks(setup))},
            on_event=bar,
        )
        remember(learned, gang)
    return dict(results[0])


def score(setup: Setup, learned: Learned, request: RowsRequest, batch_size: int, context: Context) -> float:
    """Return one number, the greater the better: the first metric, or the default one of the model."""
    framework = setup.backend.framework
    metrics = setup.metrics[:1] or framework.metrics(setup.spec, framework.score_name(setup.spec))
    name = metrics[0].name
    value = evaluate(setup, learned, request, batch_size, context, metrics)[name]
    return -value if less_is_better(name) else value
