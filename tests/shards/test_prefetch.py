"""Prefetching: the same items in the same order, errors propagated, no thread leaked."""

from __future__ import annotations

import threading
import time

import pytest

from orca.shards.prefetch import ahead


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "orca-prefetch"]


def test_items_keep_their_order_and_no_thread_remains():
    def slow():
        for number in range(6):
            time.sleep(0.05)
            yield number

    assert list(ahead(slow())) == list(range(6))
    assert not threads()


def test_errors_are_raised_in_place_of_the_item():
    def broken():
        yield 1
        raise LookupError("second")

    stream = ahead(broken())
    assert next(stream) == 1
    with pytest.raises(LookupError, match="second"):
        next(stream)
    assert not threads()


def test_stopping_early_ends_the_thread_and_prefetches_only_a_few_items():
    produced = []

    def endless():
        number = 0
        while True:
            produced.append(number)
            yield number
            number += 1

    stream = ahead(endless(), depth=2)
    assert next(stream) == 0
    time.sleep(0.3)
    assert len(produced) <= 5
    stream.close()
    assert not threads()
