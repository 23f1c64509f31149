"""The encoders of a process: each is loaded once, and unused ones are released."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from citewell.profiler.ledger.encoding import TRY_AGAIN_SECONDS, Encoders
from citewell.runtime.errors import FailedPrecondition
from tests.ledger_world import HashEncoder


def test_two_threads_load_an_encoder_once() -> None:
    loading, go_on = threading.Event(), threading.Event()
    loaded: list[str] = []

    def load(name: str) -> HashEncoder:
        loaded.append(name)
        loading.set()
        assert go_on.wait(30)
        return HashEncoder(name)

    encoders = Encoders(load)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(encoders.named, "a")
        assert loading.wait(30)
        second = pool.submit(encoders.named, "a")
        go_on.set()
        assert first.result() is second.result()
    assert loaded == ["a"]


def test_encoders_that_nobody_uses_are_released() -> None:
    encoders = Encoders(HashEncoder)
    kept, gone = weakref.ref(encoders.named("kept")), weakref.ref(encoders.named("gone"))
    encoders.keep(["kept", "never loaded"])
    assert kept() is encoders.named("kept")
    assert gone() is None


def test_an_encoder_that_cannot_be_loaded_is_not_tried_for_every_event() -> None:
    now = [0.0]
    tried: list[str] = []

    def load(name: str) -> HashEncoder:
        tried.append(name)
        raise FailedPrecondition("its folder is gone")

    encoders = Encoders(load, lambda: now[0])
    for _ in range(3):
        with pytest.raises(FailedPrecondition, match="gone"):
            encoders.of_model("a", "a-6")
    assert len(tried) == 1
    now[0] = TRY_AGAIN_SECONDS
    with pytest.raises(FailedPrecondition, match="gone"):
        encoders.of_model("a", "a-6")
    assert len(tried) == 2
