"""Units as they are written: whole sets against tests/units/<case>, and what they must hold.

After an intended change, EPYC_VLLM_WRITE_UNITS=1 writes the sets anew; `git diff` shows it.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from epyc_vllm_agent.changes.installed import encode_plan
from epyc_vllm_agent.plan.values import EndpointPlan, Instance
from epyc_vllm_agent.units.names import MARK, service_name, target_name
from epyc_vllm_agent.units.render import command, environment, render
from tests import golden
from tests.hosts import HOSTS, facts_of
from tests.plans import LAUNCH, endpoint, model_facts, plan
from tests.unitsyntax import words

SPACES = "/srv/my models/100% \"größe\" $HOME \\n; 'it'\\"


def _genoa() -> EndpointPlan:
    return plan(facts_of(HOSTS["genoa-2s-nps1"]))


def _turin() -> EndpointPlan:
    config = endpoint("large", model="org/Large", port=9000, max_model_len=32768, num_prompts=4)
    return plan(facts_of(HOSTS["turin-2s-nps4"]), config, model_facts(id="org/Large"))


def _milan() -> EndpointPlan:
    config = endpoint(
        "shared",
        model="/tmp/tiny",  # noqa: S108 - below what PrivateTmp= would hide
        served_model_name="tiny",
        cores=2,
        address="::",
        api_key_file="/etc/epyc-vllm/api-key",
        accept=["stock-cpu", "custom-code"],
        start_timeout=120,
    )
    model = model_facts(id=config.model, revision=None, custom_code=True, weight_bytes=8_000_000)
    launch = replace(LAUNCH, numactl=None, preload=())
    return plan(facts_of(HOSTS["milan-1s"]), config, model, launch=launch, model_path=config.model)


def _injection() -> EndpointPlan:
    config = endpoint(
        "injection",
        model=SPACES,
        served_model_name="a \"b\" 'c' %n %% $X ${Y} \\ ; é \u2028 -e",
        chat_template="/srv/my templates/%t.jinja",
        vllm_args=["--seed", ";", "$(reboot)", '{"a": "%h"}', "\\", "# no", "-", "'", '"'],
        env={"A": '%n $HOME "x" \\', "B": "ü;#", "C": " "},
        sockets=[0],
        cores=1,
    )
    model = model_facts(id=config.model, revision=None, weight_bytes=8_000_000)
    launch = replace(LAUNCH, agent="/opt/an agent/100%/bin/epyc-vllm")
    return plan(facts_of(HOSTS["genoa-1s"]), config, model, launch=launch, model_path=config.model)


CASES = {
    "genoa-2s-nps1": _genoa,
    "turin-2s-nps4-ranks": _turin,
    "milan-stock": _milan,
    "injection": _injection,
}


def values(text: str, key: str) -> list[str]:
    return [line.split("=", 1)[1] for line in text.split("\n") if line.startswith(f"{key}=")]


def services(made: EndpointPlan) -> list[tuple[Instance, str]]:
    texts = {unit.name: unit.text for unit in render(made)}
    return [(instance, texts[service_name(instance.name)]) for instance in made.instances]


@pytest.mark.parametrize("case", CASES)
def test_the_whole_set_of_units(case: str) -> None:
    made = CASES[case]()
    assert not made.refusals
    golden.require_same(case, render(made))


def test_no_set_is_left_over() -> None:
    assert {path.name for path in golden.FOLDER.iterdir()} == {*CASES, "quadlet"}


@pytest.mark.parametrize("case", CASES)
def test_what_systemd_reads_is_what_was_meant(case: str) -> None:
    made = CASES[case]()
    for instance, text in services(made):
        (line,) = values(text, "ExecStart")
        assert line.startswith(":")  # no substitution of "$"
        assert tuple(words(line.removeprefix(":"))) == command(made, instance)
        read = [words(value) for value in values(text, "Environment")]
        assert read == [[f"{name}={value}"] for name, value in environment(made, instance)]
        (mounts,) = values(text, "RequiresMountsFor")
        assert made.model.path in words(mounts)


@pytest.mark.parametrize("case", CASES)
def test_every_line_is_a_section_a_comment_or_a_directive(case: str) -> None:
    for unit in render(CASES[case]()):
        assert unit.text.startswith(MARK)
        assert unit.text.endswith("\n")
        for line in unit.text.split("\n"):
            assert not line.endswith("\\")
            key = line.partition("=")[0]
            assert not line or line[0] in "#[" or (key.isascii() and key.isalnum()), line


@pytest.mark.parametrize("case", CASES)
def test_units_belong_together(case: str) -> None:
    made = CASES[case]()
    target = target_name(made.name)
    names = [service_name(instance.name) for instance in made.instances]
    texts = {unit.name: unit.text for unit in render(made)}
    assert set(texts) == {target, *names}
    assert values(texts[target], "Wants") == values(texts[target], "After") == [" ".join(names)]
    for name in names:
        assert target in values(texts[name], "PartOf")[0].split()
        assert values(texts[name], "Restart") == ["no"]
        assert values(texts[name], "KillMode") in (["mixed"], ["control-group"])
        stop, start = values(texts[name], "TimeoutStopSec"), values(texts[name], "TimeoutStartSec")
        assert int(stop[0]) < 60
        assert int(start[0]) > made.start_timeout_seconds


def option(arguments: Sequence[str], name: str) -> str:
    return arguments[list(arguments).index(name) + 1]


def test_the_command_of_a_whole_socket() -> None:
    made = _genoa()
    arguments = command(made, made.instances[1])
    assert arguments[:3] == ("/usr/bin/numactl", "--cpunodebind=1", "--membind=1")
    assert arguments[3:6] == ("/opt/vllm/bin/vllm", "serve", made.model.path)
    assert option(arguments, "--port") == "8001"
    assert option(arguments, "--host") == "127.0.0.1"
    assert option(arguments, "--served-model-name") == "Qwen/Qwen3-8B"
    assert option(arguments, "--max-model-len") == "4096"
    for absent in ("--tensor-parallel-size", "--trust-remote-code", "--chat-template", "--device"):
        assert absent not in arguments


def test_ranks() -> None:
    made = _turin()
    instance = made.instances[1]
    arguments, variables = command(made, instance), dict(environment(made, instance))
    assert arguments[1:3] == ("--cpunodebind=4-7", "--membind=4-7")
    assert option(arguments, "--tensor-parallel-size") == "4"
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "16-18|20-22|24-26|28-30"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == str(instance.kv_gib_per_rank)


def test_a_share_is_bound_to_its_cpus() -> None:
    made = plan(facts_of(HOSTS["genoa-2s-nps1"]), endpoint(cores=2, sockets=[1]))
    assert command(made, made.instances[0])[1:3] == ("--physcpubind=16-17,48-49", "--membind=1")


def test_taskset_and_nothing() -> None:
    made = _milan()
    assert command(made, made.instances[0])[4:7] == ("/usr/bin/taskset", "--cpu-list", "0-1,16-17")
    bare = replace(made, launch=replace(made.launch, taskset=None))
    assert command(bare, bare.instances[0])[4] == "/opt/vllm/bin/vllm"


@pytest.mark.parametrize("accept", [[], ["custom-code"]])
def test_custom_code_runs_only_where_its_gate_is_accepted(accept: list[str]) -> None:
    config = endpoint(accept=accept, sockets=[0])
    made = plan(facts_of(HOSTS["genoa-1s"]), config, model_facts(custom_code=True))
    assert ("--trust-remote-code" in command(made, made.instances[0])) == bool(accept)


def test_the_environment_is_offline_and_holds_no_secret() -> None:
    made = _milan()
    (instance, text), variables = services(made)[0], dict(environment(made, made.instances[0]))
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert "LD_PRELOAD" not in variables
    assert variables["VLLM_ENGINE_READY_TIMEOUT_S"] == "120"
    assert variables["HOME"] == made.cache_folder(instance)
    assert values(text, "LoadCredential") == ["api-key:/etc/epyc-vllm/api-key"]
    assert command(made, instance)[:4] == (LAUNCH.agent, "unit", "serve", "--")
    assert "EnvironmentFile" not in text
    assert "TOKEN" not in text


def test_the_administrators_variables_come_last() -> None:
    made = plan(facts_of(HOSTS["genoa-1s"]), endpoint(env={"VLLM_NO_USAGE_STATS": "0", "B": "1"}))
    found = environment(made, made.instances[0])
    assert found[-2:] == (("B", "1"), ("VLLM_NO_USAGE_STATS", "0"))


@pytest.mark.parametrize(
    ("path", "private"),
    [("/srv/m", True), ("/tmp/m", False), ("/var/tmp/m", False)],  # noqa: S108
)
def test_a_model_below_tmp_is_not_hidden_from_its_server(path: str, private: bool) -> None:
    config = endpoint(model=path)
    made = plan(facts_of(HOSTS["genoa-1s"]), config, model_path=path)
    assert (values(services(made)[0][1], "PrivateTmp") == ["yes"]) == private


def test_the_same_plan_gives_the_same_units() -> None:
    first, second = _turin(), _turin()
    assert render(first) == render(second)
    assert encode_plan(first) == encode_plan(second)
