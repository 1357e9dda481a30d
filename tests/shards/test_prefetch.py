"""Prefetching: the same items in the same order, errors passed on, no thread left behind."""

from __future__ import annotations

import threading
import time

import pytest

from orca.shards.prefetch import ahead


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "orca-prefetch"]


def test_items_come_in_order_and_work_overlaps():
    def slow():
        for number in range(6):
            time.sleep(0.05)
            yield number

    assert list(ahead(slow())) == list(range(6))
    assert not threads()


def test_errors_arrive_where_the_item_would_have():
    def broken():
        yield 1
        raise LookupError("second")

    stream = ahead(broken())
    assert next(stream) == 1
    with pytest.raises(LookupError, match="second"):
        next(stream)
    assert not threads()


def test_leaving_early_ends_the_thread_and_holds_only_a_few_items():
    made = []

    def endless():
        number = 0
        while True:
            made.append(number)
            yield number
            number += 1

    stream = ahead(endless(), depth=2)
    assert next(stream) == 0
    time.sleep(0.3)
    assert len(made) <= 5
    stream.close()
    assert not threads()
