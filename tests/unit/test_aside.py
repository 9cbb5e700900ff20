import threading
from collections.abc import Iterator
from threading import Event

import pytest

from epyc_vllm_agent.watch.aside import Aside

SECONDS = 30.0  # for what takes milliseconds


@pytest.fixture
def held() -> Iterator[Event]:
    """What a work waits for; set at the end of the test at the latest."""
    event = Event()
    yield event
    event.set()


def test_work_that_ends_at_once_has_ended_when_the_next_starts() -> None:
    aside = Aside(SECONDS)
    order: list[str] = []
    for number in range(20):

        def work(number: int = number) -> None:
            order.extend([f"{number} starts", f"{number} ends"])

        aside(work)
    assert order == [f"{number} {what}" for number in range(20) for what in ("starts", "ends")]


def test_threads_are_kept() -> None:
    aside = Aside(SECONDS)
    used: list[int] = []
    for _ in range(50):
        aside(lambda: used.append(threading.get_ident()))
    assert len(used) == 50
    assert len(set(used)) == 1


def wait_for(event: Event) -> None:
    event.wait(SECONDS)


def test_work_that_hangs_holds_up_no_other(held: Event) -> None:
    aside = Aside()
    others = [Event() for _ in range(10)]
    for _ in range(10):
        aside(lambda: wait_for(held))
    for other in others:
        aside(other.set)
    assert all(other.wait(SECONDS) for other in others)
    assert not held.is_set()


def test_after_what_hung_work_goes_on_one_after_another(held: Event) -> None:
    aside = Aside()
    ended = Event()

    def hangs() -> None:
        held.wait(SECONDS)
        ended.set()

    aside(hangs)
    assert aside._busy == 1
    held.set()
    assert ended.wait(SECONDS)
    aside._take_end(SECONDS)
    assert aside._busy == 0


def test_a_fault_is_told_and_the_next_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    aside = Aside(SECONDS)

    def fails() -> None:
        raise ValueError("no such look")

    aside(fails)
    done = Event()
    aside(done.set)
    assert done.wait(SECONDS)
    assert "ValueError: no such look" in capsys.readouterr().err
