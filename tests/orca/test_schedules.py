"""Learning rate schedules: BigDL's formulas, and the state of those that depend on results."""

from __future__ import annotations

import pytest

from orca.errors import ArgumentError
from orca.schedules import (
    Default,
    Exponential,
    LearningRate,
    MultiStep,
    Plateau,
    Poly,
    SequentialSchedule,
    Step,
    Warmup,
)

# The rate of the steps 0 to 7, from 0.1, worked out by hand from BigDL's formulas.
RATES = {
    Default(): [0.1, 0.1 / 1.5, 0.05, 0.04, 0.1 / 3, 0.1 / 3.5, 0.025, 0.1 / 4.5],
    Poly(0.5, 4): [0.1, 0.1 * 0.75**0.5, 0.1 * 0.5**0.5, 0.05, 0.0, 0.0, 0.0, 0.0],
    Step(3, 0.5): [0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025],
    MultiStep((2, 3, 6), 0.5): [0.1, 0.1, 0.05, 0.025, 0.025, 0.025, 0.0125, 0.0125],
    Exponential(2, 0.25): [0.1, 0.05, 0.025, 0.0125, 0.00625, 0.003125, 0.0015625, 0.00078125],
    Exponential(2, 0.25, stair_case=True): [0.1, 0.1, 0.025, 0.025, 0.00625, 0.00625, 0.0015625, 0.0015625],
    Warmup(0.05): [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45],
}


@pytest.mark.parametrize("schedule", RATES, ids=str)
def test_rates_follow_the_formulas(schedule):
    rate = LearningRate(0.1, schedule, decay=0.5)
    assert [rate.at(step) for step in range(8)] == pytest.approx(RATES[schedule])


def test_a_sequence_begins_where_the_part_before_ended():
    schedule = SequentialSchedule(5).add(Warmup(0.1), 3).add(Step(2, 0.5), 4).add(Poly(1.0, 10), 3)
    rates = [schedule.rate(0.1, step) for step in range(12)]
    # Warmup: 0.1 + 0.1 n. Step: from 0.4, halved every 2 steps. Poly: from 0.1, by the share of all 10 steps.
    expected = [0.1, 0.2, 0.3, 0.4, 0.4, 0.2, 0.2, 0.03, 0.02, 0.01, 0.0, 0.0]
    assert rates == pytest.approx(expected)


def test_a_plateau_waits_reduces_and_rests():
    rate = LearningRate(1.0, Plateau("Loss", factor=0.5, patience=2, cooldown=2, min_lr=0.2))
    assert rate.monitor == "Loss"
    rates = []
    for epoch in range(14):
        rates.append(rate.at(epoch))
        rate.observe(epoch + 1, 3.0 if epoch else 5.0)
    # Epochs 1 and 2 improve, 3 and 4 are waited for, 5 reduces. Epoch 6 rests; 7 and 8 are waited for, 9 reduces.
    assert rates == [1.0] * 5 + [0.5] * 4 + [0.25] * 4 + [0.2]


def test_a_plateau_after_a_warmup_resumes_from_its_state():
    def sequence() -> LearningRate:
        plateau = Plateau("score", factor=0.1, patience=0, mode="max")
        return LearningRate(0.1, SequentialSchedule(2).add(Warmup(0.1), 4).add(plateau, 100))

    whole, resumed = sequence(), sequence()
    rates = []
    for epoch, score in enumerate((0.1, 0.2, 0.3, 0.3, 0.3)):
        rates += [whole.at(2 * epoch), whole.at(2 * epoch + 1)]
        whole.observe(2 * epoch + 2, score)
        if epoch == 2:
            resumed.load_state(whole.state())
        if epoch > 2:
            resumed.observe(2 * epoch + 2, score)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.5, 0.05, 0.05])
    assert resumed.at(10) == whole.at(10) == pytest.approx(0.005)
    assert (sequence().monitor, LearningRate(0.1).monitor, LearningRate(0.1).constant) == ("score", None, True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Step(0, 0.5), "step_size=0: expected an integer of at least 1"),
        (lambda: MultiStep(3, 0.5), "step_sizes=3: expected a list"),
        (lambda: Poly("a", 3), "power='a': expected a number"),
        (lambda: Plateau("Loss", factor=2), "factor=2.0: expected a number between 0 and 1"),
        (lambda: Plateau("Loss", mode="best"), "mode='best'"),
        (lambda: LearningRate(0.1, "poly"), "learningrate_schedule='poly'.*Poly"),
        (lambda: SequentialSchedule(1).add(SequentialSchedule(1), 3), "that is not a sequence"),
        (lambda: SequentialSchedule(1).add(Plateau("Loss"), 3).add(Step(1, 1), 3), "after a Plateau"),
        (lambda: LearningRate(0.1, SequentialSchedule(1)).at(0), "has no schedules"),
    ],
)
def test_wrong_schedules_are_refused(make, words: str):
    with pytest.raises(ArgumentError, match=words):
        make()
