"""The checks of an adapter: its rows give what the same rows of a pandas DataFrame give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.errors import ColumnError
from orca.testing.backend import running
from orca.testing.cases import NAMES, SEED, BackendCase, make_data, to_pandas
from orca.testing.comparing import near, refused, same_scores, same_weights
from orca.testing.leftovers import look
from orca.testing.linear import LINEAR_CASE
from orca.testing.report import Check, Result, chosen, perform, require

if TYPE_CHECKING:
    from orca.context import Context
    from orca.estimator import Estimator

ROWS = 61


@dataclass(frozen=True)
class AdapterCase:
    """How to bring rows into one kind of data.

    Args:
        name: The name in reports.
        make: ``make(frame)`` returns the rows of a pandas DataFrame as this kind of data, in the same order. The
            columns are "id" (integers), "c0" to "c5" (float32) and "label" (int64). Data without named columns takes
            features and labels from them.
        read: ``read(predicted)`` returns what `predict` gives for the data as a pandas DataFrame; for data without
            named columns, as an array. By default ``to_pandas()`` or ``toPandas()``.
        named: Whether the rows have named columns.
        streams: Whether the rows come one after another, so that training uses them in their own order.
        kind: The class of what `predict` returns; by default that of the data.
        model: The model to train; by default one without a framework.
    """

    name: str
    make: Callable[[Any], Any]
    read: Callable[[Any], Any] | None = None
    named: bool = True
    streams: bool = False
    kind: type | None = None
    model: BackendCase = LINEAR_CASE

    @property
    def title(self) -> str:
        """The name in reports."""
        return self.name

    def frame(self, rows: int = ROWS) -> Any:
        """Return the rows as a pandas DataFrame."""
        import pandas as pd

        x, y = make_data(rows, self.model.labels)
        return pd.DataFrame({"id": np.arange(rows), **dict(zip(NAMES, x.T, strict=True)), "label": y})

    @property
    def features(self) -> list[str] | None:
        """The columns of features, if columns have names."""
        return NAMES if self.named else None

    @property
    def columns(self) -> dict[str, Any]:
        """The arguments that name columns, for data that has them."""
        return {"feature_cols": NAMES, "label_cols": ["label"]} if self.named else {}

    def fitted(self) -> Estimator:
        """Return an estimator that was trained on the rows as arrays."""
        est = self.model.make(2, seed=SEED, metrics=["accuracy"])
        est.fit(*self.model.data(ROWS), epochs=2, batch_size=16)
        return est


def recognized(case: AdapterCase, context: Context) -> None:
    """The data has an adapter of its own, which refuses other kinds of data."""
    from orca.shards.adapters.registry import adapt

    adapter = adapt(case.make(case.frame()))
    assert type(adapter).accepts(adapter.data), f"{type(adapter).__name__} does not accept the data"
    assert type(adapter).__name__ != "ArraysAdapter", "the data is taken for arrays: no adapter accepts it"
    for other in (np.zeros(3), [1, 2], (1, 2), {"x": 1}, "text", 3, None):
        assert not type(adapter).accepts(other), f"{type(adapter).__name__} accepts a {type(other).__name__} too"


def columns(case: AdapterCase, context: Context) -> None:
    """The names of the columns are known without reading the rows."""
    from orca.shards.adapters.registry import adapt

    names = adapt(case.make(case.frame())).columns()
    expected = ["id", *NAMES, "label"] if case.named else None
    assert names == expected, f"columns {names}, expected {expected}"


def head(case: AdapterCase, context: Context) -> None:
    """The first rows come into this process as features, and reading them uses nothing up."""
    from orca.shards.adapters.base import Form, Place
    from orca.shards.adapters.registry import adapt

    adapter = adapt(case.make(case.frame()))
    form = Form(feature_cols=case.features, need_labels=False, creator_arguments=({}, ROWS))
    x, _ = case.model.data(ROWS)
    for count in (1, 5):
        near(adapter.head(count, form, Place(context.engine)), x[:count], f"the first {count} rows")


def fit(case: AdapterCase, context: Context) -> None:
    """Training uses the same rows in the same order as from arrays, or a stream's own, and frees what it stored."""
    est = case.model.make(2, seed=SEED)
    before = look()
    history = est.fit(case.make(case.frame()), epochs=2, batch_size=16, **case.columns)
    assert history["rows"] == [ROWS] * 2, f"trained on {history['rows']} rows of {ROWS}"
    expected = case.model.expected(ROWS, 2, 16, shuffle=not case.streams)
    same_weights(case.model.learned(est), expected, case.model, "after fit")
    kept = [name for name in look().minus(before).get("files", ()) if "/" in name]
    assert not kept, f"fit left shards behind: {kept}"


def evaluate(case: AdapterCase, context: Context) -> None:
    """Loss and metrics are those of the same rows as arrays."""
    est = case.fitted()
    scores = est.evaluate(case.make(case.frame()), **case.columns)
    same_scores(scores, est.evaluate(*case.model.data(ROWS)), "evaluate")


def predict(case: AdapterCase, context: Context) -> None:
    """Predictions come back in the kind of the data, one per row, beside the columns it had."""
    est, (x, _) = case.fitted(), case.model.data(ROWS)
    data, expected = case.make(case.frame()), case.model.compute(est, x)
    predicted = est.predict(data, batch_size=16, feature_cols=case.features)
    kind = case.kind or (type(data) if case.named else np.ndarray)
    assert isinstance(predicted, kind), f"predict returned a {type(predicted).__name__}, expected a {kind.__name__}"
    if not case.named:
        near(predicted if case.read is None else case.read(predicted), expected, "predictions", rtol=1e-4, atol=1e-5)
        return
    frame = to_pandas(predicted) if case.read is None else case.read(predicted).sort_values("id")
    assert list(frame.columns) == ["id", *NAMES, "label", "prediction"], f"columns {list(frame.columns)}"
    np.testing.assert_array_equal(frame["id"], np.arange(ROWS), "rows")
    np.testing.assert_array_equal(frame[NAMES].to_numpy(), x, "features beside predictions")
    values = np.stack(list(frame["prediction"])).reshape(expected.shape)
    near(values, expected, "predictions", rtol=1e-4, atol=1e-5)


def one_row(case: AdapterCase, context: Context) -> None:
    """A single row is trained on and predicted."""
    est = case.model.make(2, seed=SEED)
    assert est.fit(case.make(case.frame(1)), batch_size=2, **case.columns)["rows"] == [1], "rows of a fit of one row"
    predicted = est.predict(case.make(case.frame(1)), feature_cols=case.features)
    read = case.read or (to_pandas if case.named else np.asarray)
    assert len(read(predicted)) == 1, "predictions of one row"


def misspelled_column(case: AdapterCase, context: Context) -> None:
    """A misspelled column is refused on the driver, with the columns that exist."""
    est, wrong = case.model.make(2, seed=SEED), [*NAMES[:-1], "c55"]
    columns: dict[str, Any] = {"feature_cols": wrong, "label_cols": ["label"]}
    error = refused(ColumnError, lambda: est.fit(case.make(case.frame()), **columns), ["c55"])
    assert "c5" in str(error).replace("c55", ""), f"the error does not name the columns: {error}"
    refused(ColumnError, lambda: est.predict(case.make(case.frame()), feature_cols=wrong), ["c55"])


ADAPTER_CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("recognized", recognized),
        Check("columns", columns),
        Check("head", head),
        Check("fit", fit),
        Check("evaluate", evaluate),
        Check("predict", predict),
        Check("one_row", one_row),
        Check("misspelled_column", misspelled_column, ("named",)),
    )
}


def check_adapter(
    case: AdapterCase,
    runtime: str | Context | None = None,
    checks: Iterable[str] | None = None,
    *,
    raises: bool = True,
) -> list[Result]:
    """Check that a kind of data gives what the same rows of a pandas DataFrame give.

    Args:
        case: How to bring rows into this kind of data.
        runtime: The name of a runtime, which is started and stopped; or a context that runs. By default the
            active context.
        checks: Names from `ADAPTER_CHECKS`; by default all that apply.
        raises: Whether failed checks raise one AssertionError after the last one.

    Returns:
        One result for each check.

    Raises:
        AssertionError: If a check failed, with the reasons of all that failed.

    >>> import pyarrow as pa
    >>> results = check_adapter(AdapterCase("Arrow table", lambda frame: pa.Table.from_pandas(frame)))
    >>> {result.outcome for result in results}
    {'passed'}
    """
    wanted = chosen(ADAPTER_CHECKS, checks)
    with running(runtime) as context:
        results = [perform(check, case, context, name=case.name, runtime=context.runtime) for check in wanted]
    if raises:
        require(results)
    return results
