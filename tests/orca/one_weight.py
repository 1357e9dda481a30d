"""A run of a single rank with a real torch model and no gang, for tests of callbacks."""

from __future__ import annotations

import torch

from orca.backends.base import Outcome, Replica
from orca.callbacks import Run
from orca.runs import saved_states


class OneWeight(Replica):
    """A replica whose model is one number: each step adds 1 to it, with SGD, whatever the batch."""

    def __init__(self, lr: float = 1.0) -> None:
        self.inner_model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.inner_model.weight)
        self.inner_optimizer = torch.optim.SGD(self.inner_model.parameters(), lr=lr)

    @property
    def weight(self) -> float:
        return float(self.inner_model.weight.detach())

    def train_step(self, batch, want_output):
        self.inner_optimizer.zero_grad()
        (-self.inner_model.weight).sum().backward()
        self.inner_optimizer.step()
        return Outcome(self.weight, 1.0)

    def evaluate_step(self, data, want_output):
        return Outcome(self.weight, 1.0)

    def predict_step(self, features):
        return features * self.weight

    def state(self):
        # Copied, because a state must outlive the steps that follow it.
        optimizer = self.inner_optimizer.state_dict()["param_groups"]
        return {"weight": self.inner_model.weight.detach().numpy().copy(), "groups": [dict(g) for g in optimizer]}

    def load_state(self, state):
        with torch.no_grad():
            self.inner_model.weight.copy_(torch.from_numpy(state["weight"]))
        self.inner_optimizer.load_state_dict({"state": {}, "param_groups": state["groups"]})

    def learning_rate(self):
        return float(self.inner_optimizer.param_groups[0]["lr"])


def train(callbacks, records, *, run=None, first=1, steps=2):
    """Drive callbacks through one epoch per record as a rank does; return the run."""
    run = run or Run(OneWeight(), 0, 1, {"gamma": 0.5})
    run.reason, run.batches, run.last_epoch = None, steps, first + len(records) - 1
    run.validates = any(name.startswith("val_") for record in records for name in record)
    run.rates = []
    for callback in callbacks:
        callback.before_run(run)
    for epoch, record in enumerate(records, first):
        run.epoch, run.batch, run.record = epoch, 0, {}
        for callback in callbacks:
            callback.before_epoch(run)
        for _ in range(steps):
            for callback in callbacks:
                callback.before_batch(run)
            run.rates.append(run.learning_rate)
            run.loss = run.replica.train_step(None, False).loss_sum
            run.batch += 1
            run.step += 1
            for callback in callbacks:
                callback.after_batch(run)
        run.record = {"epoch": epoch, **record}
        for callback in callbacks:
            callback.after_epoch(run)
        if run.reason is not None:
            break
    for callback in callbacks:
        callback.after_run(run)
    return run


def losses(*values, name="val_loss"):
    return [{name: value} for value in values]


def saved_and_read(tmp_path, state):
    """Return a callback's state as a checkpoint restores it."""
    saved_states.save(str(tmp_path / "state"), {}, state)
    return saved_states.load(str(tmp_path / "state"))[1]
