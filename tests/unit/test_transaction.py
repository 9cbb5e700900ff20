"""Several files as one: all of them, or everything as it was."""

import contextlib
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epyc_vllm_agent.apply.transaction import Transaction
from epyc_vllm_agent.changes.changes import FileChange
from epyc_vllm_agent.errors import ActionFailed, Refused
from epyc_vllm_agent.files import stage, sweep, write_atomically
from epyc_vllm_agent.paths import Paths


def state(root: Path) -> dict[str, str]:
    return {
        f"/{path.relative_to(root)}": path.read_text() for path in root.rglob("*") if path.is_file()
    }


def given_files(root: Path, **files: str) -> None:
    for name, text in files.items():
        (root / "etc").mkdir(exist_ok=True)
        (root / "etc" / name).write_text(text)


CHANGES = (
    FileChange("/etc/new", None, "1"),
    FileChange("/etc/changed", "old", "2"),
    FileChange("/etc/gone", "old", None),
    FileChange("/var/deep/er", None, "3"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    given_files(tmp_path, changed="old", gone="old", other="x")
    return tmp_path


def test_all_of_them(root: Path) -> None:
    Transaction(Paths(root), CHANGES).commit()
    assert state(root) == {
        "/etc/new": "1",
        "/etc/changed": "2",
        "/etc/other": "x",
        "/var/deep/er": "3",
    }
    assert (root / "etc/new").stat().st_mode & 0o777 == 0o644


def test_prepared_changes_nothing_yet(root: Path) -> None:
    before = state(root)
    transaction = Transaction(Paths(root), CHANGES)
    transaction.prepare()
    assert {name: text for name, text in state(root).items() if "staged" not in name} == before
    transaction.undo()
    assert state(root) == before


def test_undone(root: Path) -> None:
    before = state(root)
    transaction = Transaction(Paths(root), CHANGES)
    transaction.commit()
    transaction.undo()
    assert state(root) == before
    transaction.undo()
    assert state(root) == before


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """A limit of file sizes: a write fails by itself, whoever writes.

    Around the tested call alone: pytest's own output may go to a file that is larger.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_changes_nothing(root: Path) -> None:
    before = state(root)
    big = FileChange("/etc/zz", None, "x" * 200)
    with pytest.raises(ActionFailed) as caught, full_disk():
        Transaction(Paths(root), (*CHANGES, big)).commit()
    assert caught.value.code == "write-failed"
    assert str(root / "etc/zz") in caught.value.message
    assert state(root) == before


def test_one_file_on_a_full_disk(root: Path) -> None:
    with pytest.raises(OSError, match="changed") as caught, full_disk():
        write_atomically(root / "etc/changed", "x" * 200)
    assert caught.value.filename == str(root / "etc/changed")
    assert state(root)["/etc/changed"] == "old"
    assert len(state(root)) == 3


def test_a_failure_between_two_renames_puts_the_first_back(root: Path) -> None:
    """A folder where the last file belongs: staged beside it, but not to be replaced."""
    (root / "etc/folder").mkdir()
    before = state(root)
    blocked = FileChange("/etc/folder", "what was there", "4")
    with pytest.raises(ActionFailed):
        Transaction(Paths(root), (*CHANGES, blocked)).commit()
    assert state(root) == before


def test_a_folder_that_cannot_be_made(root: Path) -> None:
    before = state(root)
    with pytest.raises(ActionFailed, match="/etc/other/below"):
        Transaction(Paths(root), (*CHANGES, FileChange("/etc/other/below", None, "5"))).commit()
    assert state(root) == before


@pytest.mark.parametrize("link", [False, True])
def test_what_is_not_ours_is_not_replaced(root: Path, link: bool) -> None:
    path = root / "etc/new"
    if link:
        path.symlink_to("/dev/null")  # a masked unit
    else:
        path.write_text("the administrator's")
    before = state(root)
    with pytest.raises(Refused, match="was not written by epyc-vllm"):
        Transaction(Paths(root), CHANGES).commit()
    assert state(root) == before
    assert path.is_symlink() == link


def test_what_cannot_be_put_back_is_named(root: Path) -> None:
    transaction = Transaction(Paths(root), CHANGES)
    transaction.commit()
    (root / "etc/changed").unlink()
    (root / "etc/changed").mkdir()
    with pytest.raises(ActionFailed, match=r"could not be put back: /etc/changed \(") as caught:
        transaction.undo()
    assert caught.value.code == "undo-failed"
    (root / "etc/changed").rmdir()
    assert state(root) == {"/etc/gone": "old", "/etc/other": "x"}


TEXTS = st.none() | st.sampled_from(["", "a", "b"])


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(TEXTS, TEXTS)), st.integers(0, 4))
def test_any_failure_leaves_the_state_before(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, tuple[str | None, str | None]],
    where: int,
) -> None:
    root = tmp_path_factory.mktemp("root")
    given_files(root, **{name: old for name, (old, _) in files.items() if old is not None})
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/folder").mkdir()
    before = state(root)
    changes = [FileChange(f"/etc/{n}", old, new) for n, (old, new) in files.items() if old != new]
    changes.insert(min(where, len(changes)), FileChange("/etc/folder", "x", "y"))
    with pytest.raises(ActionFailed):
        Transaction(Paths(root), changes).commit()
    assert state(root) == before


def test_text_that_is_none_is_not_left_half_written(root: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_atomically(root / "etc/new", "\ud800")
    assert "/etc/new" not in state(root)
    assert len(state(root)) == 3


def test_a_folder_in_the_way_of_one_file(root: Path) -> None:
    (root / "etc/folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(root / "etc/folder", "x")
    assert len(state(root)) == 3


def test_what_a_killed_run_staged_is_swept(root: Path) -> None:
    left: Sequence[Path] = [stage(root / "etc/new", "1"), stage(root / "etc/more", "2")]
    assert all(path.is_file() for path in left)
    sweep([root / "etc", root / "absent"])
    assert len(state(root)) == 3


def test_a_change_is_whole_for_whoever_reads(root: Path) -> None:
    """An open file keeps the old text: the new one is another file, not the old one rewritten."""
    path = root / "etc/changed"
    before = os.stat(path).st_ino  # noqa: PTH116 - the number as the kernel has it
    with path.open() as reader:
        write_atomically(path, "a longer text")
        assert reader.read() == "old"
    assert path.stat().st_ino != before
