"""What packaging/build-deb makes of HEAD, and what Debian's tools say of it."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.guest import rootfs
from tests.guest.environment import REPOSITORY
from tests.package import build, chroot

pytestmark = pytest.mark.timeout(3600)


def contents(built: Path) -> set[str]:
    listed = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", build.deb(built)], capture_output=True, check=True
    ).stdout
    names = subprocess.run(["tar", "-t"], input=listed, capture_output=True, check=True).stdout
    return {name.removeprefix(".") for name in names.decode().splitlines()}


def test_lintian_has_neither_error_nor_warning(built: Path) -> None:
    said = (built / "lintian").read_text()
    assert not re.findall(r"^[EW]: .*", said, re.MULTILINE)


def test_source_and_binary_are_there(built: Path) -> None:
    names = {path.suffix for path in built.iterdir()}
    assert {".deb", ".dsc", ".xz", ".changes", ".buildinfo"} <= names


def test_everything_is_where_it_is_looked_for(built: Path) -> None:
    found = contents(built)
    for name in (
        *("/usr/bin/epyc-vllm", "/etc/epyc-vllm/epyc-vllm.toml"),
        *("/usr/lib/systemd/system/epyc-vllm.target", "/usr/lib/sysusers.d/epyc-vllm.conf"),
        *("/usr/lib/systemd/system/epyc-vllm-watchdog.service",),
        *("/usr/lib/tmpfiles.d/epyc-vllm.conf",),
        *("/usr/share/polkit-1/rules.d/epyc-vllm-watchdog.rules",),
        *("/usr/share/man/man1/epyc-vllm.1.gz", "/usr/share/man/man5/epyc-vllm.toml.5.gz"),
        *("/usr/share/man/man1/epyc-vllm-enable.1.gz", "/usr/libexec/epyc-vllm/make-environment"),
        *("/usr/share/bash-completion/completions/epyc-vllm",),
        *("/usr/share/zsh/vendor-completions/_epyc-vllm",),
        *("/usr/share/fish/vendor_completions.d/epyc-vllm.fish",),
        *("/usr/share/epyc-vllm/python/huggingface_hub/__init__.py",),
        *("/usr/share/doc/epyc-vllm/examples/qwen3-8b.toml",),
        *(f"/usr/share/epyc-vllm/{path.name}" for path in (REPOSITORY / "data").glob("*.json")),
    ):  # fmt: skip
        assert name in found, name
    assert not [name for name in found if name.startswith("/usr/local/") or "/tests/" in name]


def test_a_broken_download_is_not_packaged(built: Path, tmp_path: Path) -> None:
    """Another file under the pinned name."""
    del built
    (wheel,) = build.wheels().iterdir()
    (tmp_path / wheel.name).write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(Exception, match="DO NOT MATCH THE HASHES"):
        chroot.run(
            build.builder(),
            [f"{build.SOURCE}/packaging/build-deb", "--quick", "/tmp/out"],  # noqa: S108
            {REPOSITORY: f"{build.SOURCE}:ro", tmp_path: build.WHEELS},
            build.ENVIRONMENT,
        )


def test_piuparts(built: Path) -> None:
    """Installation and purge leave nothing behind that was not there before.

    Its own upgrade test wants an archive that has an earlier version: see test_lifecycle.
    """
    command = ["piuparts", "--existing-chroot=/base", f"--distribution={rootfs.SUITE}"]
    command += ["--no-upgrade-test", f"{build.OUTPUT}/{build.deb(built).name}"]
    said = chroot.run(build.builder(), command, {built: build.OUTPUT, build.fresh(): "/base:ro"})
    assert "PASS: All tests." in said
