"""One changing run at a time."""

import os
from pathlib import Path
from threading import Event, Thread

import pytest

from epyc_vllm_agent.apply.lock import locked
from epyc_vllm_agent.errors import ActionFailed, ExitCode, Locked
from epyc_vllm_agent.paths import Paths


def test_a_second_run_is_told_who_holds_it(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    with locked(paths), pytest.raises(Locked) as caught, locked(paths):
        pytest.fail("two runs hold the lock")
    assert caught.value.exit_code is ExitCode.LOCKED
    assert f"(process {os.getpid()})" in caught.value.message


def test_it_is_let_go_also_after_a_failure(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), locked(paths):
            raise KeyboardInterrupt
    with locked(paths):
        assert (paths.run / "lock").read_text() == str(os.getpid())


def test_what_an_earlier_holder_wrote_does_not_matter(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.run.mkdir(parents=True)
    (paths.run / "lock").write_text("99999999 and more")
    with locked(paths):
        assert (paths.run / "lock").read_text() == str(os.getpid())


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with (
        pytest.raises(ActionFailed, match=r"the lock .* cannot be opened"),
        locked(Paths(tmp_path)),
    ):
        pytest.fail("there is no lock to hold")


def test_programs_that_are_started_do_not_inherit_it(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    with locked(paths):
        held = [
            int(entry.name)
            for entry in Path("/proc/self/fd").iterdir()
            if str(entry.resolve()) == str(paths.run.resolve() / "lock")
        ]
        assert held
        assert not any(os.get_inheritable(descriptor) for descriptor in held)


def test_a_run_that_may_wait_says_so_and_waits(tmp_path: Path) -> None:
    paths, said, order = Paths(tmp_path), Event(), list[str]()

    def tell(message: str) -> None:
        order.append(message)
        said.set()

    def second() -> None:
        with locked(paths, tell):
            order.append("second")

    waiting = Thread(target=second)
    with locked(paths):
        waiting.start()
        assert said.wait(60)
        order.append("first")
    waiting.join(60)
    assert order[1:] == ["first", "second"]
    assert f"(process {os.getpid()})" in order[0]
