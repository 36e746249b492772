"""The limit on matching: it ends what would not end, and leaves the caller's signals as found."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest
from quantplan.dispatch.time_limit import LIMIT_S, limited
from quantplan.tables.errors import CheckpointError

ENDLESS = re.compile(r"(a+)+$")
"""Each further letter of a text that does not match doubles the time."""
HOSTILE = "a" * 60 + "b"


@pytest.fixture(autouse=True)
def _no_timer_is_left() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before


def handler(number: int, frame: FrameType | None) -> None:
    """Stand for a caller's own handler."""


def test_an_endless_expression_is_stopped() -> None:
    with pytest.raises(CheckpointError) as raised, limited(0.05):
        ENDLESS.match(HOSTILE)
    assert str(raised.value) == (
        "the checkpoint's config and names take too long to match; wanted an answer within 0.05 "
        "seconds. Look for regular expressions with nested repeats.")
    assert raised.value.exit_code == 3


def test_what_ends_in_time_is_left_alone() -> None:
    with limited(5):
        assert ENDLESS.match("aaa") is not None
        remaining, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < remaining <= 5
        assert interval == 0


def test_the_limit_is_ten_seconds() -> None:
    assert LIMIT_S == 10
    with limited():
        assert 9 < signal.getitimer(signal.ITIMER_REAL)[0] <= 10


def test_no_alarm_comes_after_the_body() -> None:
    with limited(0.05):
        pass
    time.sleep(0.1)


@pytest.mark.parametrize("before", [handler, signal.SIG_IGN, signal.SIG_DFL])
@pytest.mark.parametrize("fails", [False, True])
def test_the_handler_is_restored(before: signal.Handlers, fails: bool) -> None:
    first = signal.signal(signal.SIGALRM, before)
    try:
        try:
            with limited(5):
                assert signal.getsignal(signal.SIGALRM) is not before
                if fails:
                    raise KeyError("body")
        except KeyError as error:
            assert fails and error.args == ("body",)
        assert signal.getsignal(signal.SIGALRM) is before
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, first)


def test_the_handler_is_restored_after_the_limit() -> None:
    first = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(CheckpointError), limited(0.05):
            ENDLESS.match(HOSTILE)
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, first)


def test_an_outer_timer_is_left_alone() -> None:
    """There is one timer in a process; the caller's goes on counting and calls its own handler."""
    first = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 50)
    try:
        with limited(0.01):
            assert signal.getsignal(signal.SIGALRM) is handler
            time.sleep(0.05)
        assert 40 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, first)


def test_an_inner_limit_leaves_the_outer_one() -> None:
    with limited(5):
        outer = signal.getsignal(signal.SIGALRM)
        with limited(0.01):
            time.sleep(0.05)
        assert signal.getsignal(signal.SIGALRM) is outer
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 4


def test_there_is_no_limit_outside_the_main_thread() -> None:
    """Only the main thread may set a handler; signal.signal raises ValueError elsewhere."""
    done: list[object] = []

    def body() -> None:
        try:
            with limited(0.01):
                time.sleep(0.05)
                done.append(signal.getitimer(signal.ITIMER_REAL)[0])
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [0]


def test_there_is_no_limit_without_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no signal.setitimer."""
    with monkeypatch.context() as patched:
        patched.delattr(signal, "setitimer")
        before = signal.getsignal(signal.SIGALRM)
        with limited(0.01):
            time.sleep(0.05)
            assert signal.getsignal(signal.SIGALRM) is before
