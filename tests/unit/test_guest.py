"""The parts of the test host that are made without booting anything."""

import json
import math
import struct
from pathlib import Path

import pytest

from tests.guest import cache, cpuinfo, environment, models, outside, rootfs


@pytest.fixture
def cpus(tmp_path: Path) -> Path:
    """/sys/devices/system/cpu of two sockets with two cores each."""
    for cpu, (socket, core) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        place = tmp_path / f"cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{socket}\n")
        (place / "core_id").write_text(f"{core}\n")
    (tmp_path / "cpufreq").mkdir()
    return tmp_path


class TestCpuinfo:
    def blocks(self, kind: str, cpus: Path) -> list[dict[str, str]]:
        text = cpuinfo.render(kind, cpus)
        return [
            {key.strip(): value.strip() for key, value in (line.split(":", 1) for line in lines)}
            for lines in (block.splitlines() for block in text.strip().split("\n\n"))
        ]

    def test_cpus_sit_where_sys_says(self, cpus: Path) -> None:
        found = [
            (block["processor"], block["physical id"], block["core id"], block["siblings"])
            for block in self.blocks("genoa", cpus)
        ]
        assert found == [(str(n), str(n // 2), str(n % 2), "2") for n in range(4)]

    @pytest.mark.parametrize(
        ("kind", "vendor", "avx512f", "bf16"),
        [
            ("genoa", "AuthenticAMD", True, True),
            ("milan", "AuthenticAMD", False, False),
            ("intel", "GenuineIntel", True, False),
        ],
    )
    def test_what_platforms_are_chosen_by(
        self, cpus: Path, kind: str, vendor: str, avx512f: bool, bf16: bool
    ) -> None:
        block = self.blocks(kind, cpus)[0]
        flags = block["flags"].split()
        assert block["vendor_id"] == vendor
        assert ("avx512f" in flags, "avx512_bf16" in flags) == (avx512f, bf16)


class TestModels:
    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        shape = models.Shape(1, 8, 16, 2, 1, 4)
        models.write(tmp_path / "chat", models.TEMPLATE, shape)
        models.write(tmp_path / "base", None, shape)
        return tmp_path

    def test_the_weights_are_where_the_header_says(self, repository: Path) -> None:
        content = (repository / "chat/model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        header.pop("__metadata__")
        sizes = [end - start for start, end in (t["data_offsets"] for t in header.values())]
        assert sizes == [2 * math.prod(tensor["shape"]) for tensor in header.values()]
        assert len(content) == 8 + length + sum(sizes)

    def test_only_one_of_them_has_a_template(self, repository: Path) -> None:
        chat, base = (
            json.loads((repository / name / "tokenizer_config.json").read_text())
            for name in ("chat", "base")
        )
        assert chat["chat_template"] == models.TEMPLATE
        assert "chat_template" not in base

    def test_every_byte_is_a_token_and_every_merge_another(self, repository: Path) -> None:
        tokenizer = json.loads((repository / "chat/tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        assert set(models.bytes_as_text()) <= set(vocabulary)
        assert all(left + right in vocabulary for left, right in tokenizer["model"]["merges"])
        rows = json.loads((repository / "chat/config.json").read_text())["vocab_size"]
        assert max(token["id"] for token in tokenizer["added_tokens"]) < rows

    def test_the_same_seed_gives_the_same_bytes(self, repository: Path) -> None:
        names = [repository / name / "model.safetensors" for name in ("chat", "base")]
        assert names[0].read_bytes() == names[1].read_bytes()


class TestInterpreter:
    OLD = "/home/me/.pyenv/versions/3.11.7/lib"

    def test_the_run_path_becomes_relative_in_place(self) -> None:
        binary = b"\x7fELF\0" + self.OLD.encode() + b"\0libpython3.11.so\0"
        changed = environment.with_run_path(binary, self.OLD)
        assert len(changed) == len(binary)
        assert b"\0$ORIGIN/../lib\0" in changed
        assert changed.endswith(b"\0libpython3.11.so\0")

    @pytest.mark.parametrize("old", ["/usr/lib", OLD + "64"])
    def test_another_binary_stays_as_it_is(self, old: str) -> None:
        binary = b"\0/usr/lib\0" + self.OLD.encode() + b"\0"
        assert environment.with_run_path(binary, old) == binary


class TestCache:
    @pytest.fixture(autouse=True)
    def _elsewhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv(cache.VARIABLE, str(tmp_path))

    def test_a_part_is_made_once_for_its_inputs(self) -> None:
        made: list[Path] = []

        def make(target: Path) -> None:
            target.mkdir()
            made.append(target)

        paths = [cache.part("x", [1], make), cache.part("x", [1], make), cache.part("x", [2], make)]
        assert paths[0] == paths[1] != paths[2]
        assert made == [paths[0], paths[2]]

    def test_a_part_whose_making_was_cut_short_is_made_anew(self) -> None:
        def cut_short(target: Path) -> None:
            target.mkdir()
            (target / "half").touch()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cache.part("x", [1], cut_short)
        path = cache.part("x", [1], lambda target: target.mkdir())
        assert list(path.iterdir()) == []


class TestLayer:
    def test_the_shim_is_there_only_where_it_is_needed(self, tmp_path: Path) -> None:
        for needed in (True, False):
            rootfs.lay_over(tmp_path / str(needed), "name", cpuset_v1=needed)
            shim = tmp_path / str(needed) / "usr/local/bin/crun-cpuset-shim"
            assert shim.exists() == needed

    def test_masks_and_the_cpuinfo_unit(self, tmp_path: Path) -> None:
        rootfs.lay_over(tmp_path, "name", cpuset_v1=False)
        units = tmp_path / "etc/systemd/system"
        assert (units / "getty.target").readlink() == Path("/dev/null")
        wanted = units / "sysinit.target.wants/test-cpuinfo.service"
        assert wanted.resolve() == (units / "test-cpuinfo.service").resolve()


def test_missing_libraries_and_programs_are_named_by_package() -> None:
    everything = "\tlibnuma.so.1 (libc6,x86-64) => /lib/libnuma.so.1\n"
    assert "libnuma1" in outside.missing_packages("")
    assert "libnuma1" not in outside.missing_packages(everything)
