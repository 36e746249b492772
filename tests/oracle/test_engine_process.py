"""The engine's process against a worker without an engine: answers, deaths, hangs, faults."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quantplan.oracle.engine_process import CannotAskError, EngineProcess, Where

FAKE = str(Path(__file__).parent / "fake_worker.py")
OK = {"outcome": "ok"}


@pytest.fixture
def process() -> Iterator[EngineProcess]:
    running = EngineProcess(Where(worker=FAKE), limit_s=2)
    yield running
    running.close()


def machine(capability: int = 89) -> dict[str, Any]:
    return {"capability": capability, "env": {}, "libs": {}, "gpu": "emulated"}


def question(fake: Any) -> dict[str, Any]:
    return {"config": {"fake": fake}}


def test_the_version_is_the_engines(process: EngineProcess) -> None:
    assert process.start(only_version=True) == "0.32.0"


def test_answers_come_with_their_machine(process: EngineProcess) -> None:
    assert process.ask(machine(), question(OK)) == {
        **OK, "machine": {"ready": True, "capability": 89, "libs": {}}}
    assert process.ask(machine(90), question(OK))["machine"]["capability"] == 90
    assert process.ask(machine(), question(OK))["machine"]["capability"] == 89


@pytest.mark.parametrize("fake, reason", [
    ("die", "the engine's process ended: Segmentation fault"),
    ("hang", "no answer within 2 s"),
])
def test_one_case_that_kills_the_engine_costs_one_answer(
    process: EngineProcess, fake: str, reason: str
) -> None:
    assert process.ask(machine(), question(OK))["outcome"] == "ok"
    assert process.ask(machine(), question(fake)) == {"outcome": "untold", "reason": reason}
    assert process.ask(machine(), question(OK))["outcome"] == "ok"


def test_a_machine_that_does_not_come_up_is_tried_once(process: EngineProcess) -> None:
    answer = {"outcome": "untold", "reason": "the engine did not come up: no such machine"}
    assert process.ask(machine(60), question(OK)) == answer
    assert process.ask(machine(60), question(OK)) == answer
    assert process.ask(machine(), question(OK))["outcome"] == "ok"


@pytest.mark.parametrize("variable, said", [
    ("FAKE_FAULT", "torch is not importable"),
    ("FAKE_CRASH", "ImportError: libcudart.so.13"),
])
def test_no_engine_is_said_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    monkeypatch.setenv(variable, said)
    with pytest.raises(CannotAskError) as raised:
        EngineProcess(Where(worker=FAKE)).start()
    assert str(raised.value) == f"vLLM cannot be asked with {sys.executable}: {said}"


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotAskError) as raised:
        EngineProcess(Where(python="/nowhere/python", worker=FAKE)).start()
    assert str(raised.value) == "/nowhere/python cannot be run: No such file or directory"


def test_another_program_is_not_the_engine() -> None:
    process = EngineProcess(Where(python="/bin/echo", worker="[1]"), limit_s=2)
    with pytest.raises(CannotAskError) as raised:
        process.start()
    assert str(raised.value) == "vLLM cannot be asked with /bin/echo: it said b'[1]'"
