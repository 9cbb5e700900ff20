"""The stand-in for vLLM answers and fails as the real one was seen to."""

import json
from pathlib import Path

import pytest

from tests.standin.vllm_standin import api, control, serving
from tests.standin.vllm_standin.control import Behaviour

GOOD = Behaviour()
CHAT = serving.Served("m", "/models/m", 2048, True, None)
BASE = serving.Served("m", "/models/m", 2048, False, None)
KEYED = serving.Served("m", "/models/m", 2048, True, "secret")
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def ask(
    path: str, body: object, served: serving.Served = CHAT, behaviour: Behaviour = GOOD
) -> tuple[int, dict[str, object]]:
    text = json.dumps(body).encode()
    answer = api.post(path, text, served, behaviour, api.Counters())
    return answer.status, json.loads(answer.body)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    return tmp_path


class TestCommandLine:
    def test_flags_it_does_not_know_are_accepted(self) -> None:
        words = ["/m", "--port", "8001", "--unknown", "x y", "--served-model-name", "näme $HOME"]
        command = serving.parse(words, {})
        assert (command.model, command.port, command.name) == ("/m", 8001, "näme $HOME")

    def test_it_listens_everywhere_and_serves_the_path_unless_told(self) -> None:
        command = serving.parse(["/m"], {})
        assert (command.host, command.port, command.name) == ("0.0.0.0", 8000, "/m")

    def test_the_key_comes_from_the_environment(self) -> None:
        assert serving.parse(["/m"], {"VLLM_API_KEY": "k"}).api_key == "k"


class TestLoading:
    def load(self, model: Path, *words: str, **environ: str) -> serving.Served:
        return serving.load(serving.parse([str(model), *words], {}), environ)

    def test_the_models_own_context_is_the_default(self, model: Path) -> None:
        assert self.load(model).max_model_len == 4096

    def test_a_longer_context_is_refused_in_vllms_words(self, model: Path) -> None:
        with pytest.raises(serving.LoadError, match=r"User-specified max_model_len \(8192\) is gr"):
            self.load(model, "--max-model-len", "8192")

    def test_a_folder_that_is_not_there_is_taken_for_a_repository(self, tmp_path: Path) -> None:
        with pytest.raises(serving.LoadError, match="HFValidationError"):
            self.load(tmp_path / "none")

    def test_a_folder_without_config_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(serving.LoadError, match="Invalid repository ID or local directory"):
            self.load(tmp_path)

    @pytest.mark.parametrize(
        ("gib", "said"), [("1.5", "invalid literal for int"), ("0", "No available memory")]
    )
    def test_a_kv_space_that_vllm_refuses(self, model: Path, gib: str, said: str) -> None:
        with pytest.raises(serving.LoadError, match=said):
            self.load(model, VLLM_CPU_KVCACHE_SPACE=gib)

    def test_chat_needs_a_template_of_the_model_or_of_the_command(self, model: Path) -> None:
        assert not self.load(model).chat
        assert self.load(model, "--chat-template", "/t.jinja").chat
        (model / "tokenizer_config.json").write_text('{"chat_template": "x"}')
        assert self.load(model).chat


def test_a_stream_is_a_token_each_and_an_end() -> None:
    body = json.dumps(QUESTION | {"stream": True, "max_tokens": 3}).encode()
    answer = api.post("/v1/chat/completions", body, CHAT, GOOD, api.Counters())
    *tokens, end = answer.events
    words = [json.loads(event)["choices"][0]["delta"]["content"] for event in tokens]
    assert (words, end) == ([" 0", " 1", " 2"], "[DONE]")
    assert answer.content_type == "text/event-stream"


class TestRanks:
    def test_each_rank_has_its_list(self) -> None:
        assert serving.rank_cpus("0-2,5|8", 2) == ((0, 1, 2, 5), (8,))

    def test_a_surplus_list_is_dropped_silently(self) -> None:
        assert serving.rank_cpus("0|1", 1) == ((0,),)

    @pytest.mark.parametrize("bind", [None, "auto", "nobind"])
    def test_without_a_list_nothing_is_bound(self, bind: str | None) -> None:
        assert serving.rank_cpus(bind, 2) == (None, None)

    def test_too_few_lists_are_an_error(self) -> None:
        with pytest.raises(serving.LoadError):
            serving.rank_cpus("0", 2)


class TestAnswers:
    def test_chat(self) -> None:
        status, body = ask("/v1/chat/completions", QUESTION)
        assert status == 200
        assert body["choices"][0]["message"]["content"] == " la la la la"  # type: ignore[index]
        assert body["choices"][0]["finish_reason"] == "length"  # type: ignore[index]

    def test_completion(self) -> None:
        status, body = ask("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 1}, BASE)
        assert (status, body["choices"][0]["text"]) == (200, " la")  # type: ignore[index]

    @pytest.mark.parametrize(
        ("path", "body", "served", "status", "kind"),
        [
            ("/v1/chat/completions", QUESTION, BASE, 400, "BadRequestError"),
            ("/v1/completions", {"model": "other", "prompt": "x"}, CHAT, 404, "NotFoundError"),
            ("/v1/completions", {"model": "m"}, CHAT, 400, "BadRequestError"),
            (
                "/v1/completions",
                {"model": "m", "prompt": "x", "max_tokens": 4000},
                CHAT,
                400,
                "BadRequestError",
            ),
        ],
        ids=["chat without a template", "another model", "no prompt", "too many tokens"],
    )
    def test_refusals(
        self, path: str, body: object, served: serving.Served, status: int, kind: str
    ) -> None:
        found, answer = ask(path, body, served)
        assert (found, answer["error"]["type"]) == (status, kind)  # type: ignore[index]

    def test_the_models_route_names_what_is_served(self) -> None:
        answer = api.get("/v1/models", CHAT, Behaviour(), api.Counters())
        [entry] = json.loads(answer.body)["data"]
        assert (entry["id"], entry["root"], entry["max_model_len"]) == ("m", "/models/m", 2048)

    @pytest.mark.parametrize(("given", "status"), [(None, 401), ("Bearer x", 401)])
    def test_a_key_guards_v1_only(self, given: str | None, status: int) -> None:
        answer = api.refused("/v1/models", given, KEYED)
        assert answer is not None
        assert answer.status == status
        assert api.refused("/v1/models", "Bearer secret", KEYED) is None
        assert api.refused("/health", given, KEYED) is None


class TestMetrics:
    def test_a_completion_is_counted(self) -> None:
        counters = api.Counters()
        api.post("/v1/chat/completions", json.dumps(QUESTION).encode(), CHAT, Behaviour(), counters)
        text = api.get("/metrics", CHAT, Behaviour(), counters).body
        labels = 'engine="0",model_name="m"'
        assert f"vllm:generation_tokens_total{{{labels}}} 4.0\n" in text
        assert f"vllm:num_requests_running{{{labels}}} 0.0\n" in text
        success = 'engine="0",finished_reason="length",model_name="m"'
        assert f"vllm:request_success_total{{{success}}} 1.0\n" in text

    @pytest.mark.parametrize(
        "name",
        [
            *("num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total"),
            *("num_preemptions_total", "cache_config_info"),
            *("time_to_first_token_seconds_sum", "e2e_request_latency_seconds_count"),
        ],
    )
    def test_the_names_that_a_watchdog_reads_are_there(self, name: str) -> None:
        text = api.get("/metrics", CHAT, Behaviour(), api.Counters()).body
        assert f"\nvllm:{name}{{" in text


class TestFaults:
    def test_an_error_body_comes_with_status_200(self) -> None:
        status, body = ask("/v1/chat/completions", QUESTION, CHAT, Behaviour(completion="error"))
        assert status == 200
        assert "error" in body
        assert "choices" not in body

    def test_500(self) -> None:
        assert ask("/v1/completions", {"prompt": "x"}, CHAT, Behaviour(completion="500"))[0] == 500

    def test_empty_choices(self) -> None:
        behaviour = Behaviour(completion="no-choices")
        assert ask("/v1/completions", {"prompt": "x"}, CHAT, behaviour)[1]["choices"] == []

    def test_an_exit_ends_the_server_unanswered(self) -> None:
        text = json.dumps(QUESTION).encode()
        behaviour = Behaviour(completion="exit")
        answer = api.post("/v1/chat/completions", text, CHAT, behaviour, api.Counters())
        assert answer.ends_server

    def test_a_dead_engine_is_a_503(self) -> None:
        assert api.get("/health", CHAT, Behaviour(health="503"), api.Counters()).status == 503
        assert api.get("/health", CHAT, Behaviour(), api.Counters()).status == 200

    def test_a_model_that_is_not_listed(self) -> None:
        answer = api.get("/v1/models", CHAT, Behaviour(models="missing"), api.Counters())
        assert json.loads(answer.body)["data"] == []


class TestControl:
    def test_without_a_file_it_behaves(self, tmp_path: Path) -> None:
        assert control.read(8000, {}, tmp_path / "none") == Behaviour()

    def test_port_wins_over_file_and_environment_over_both(self, tmp_path: Path) -> None:
        file = tmp_path / "control.json"
        told = {"completion": "hang", "load_seconds": 2, "exit": 3}
        file.write_text(json.dumps({**told, "ports": {"8001": {"load_seconds": 5, "exit": 4}}}))
        environ = {"STANDIN_EXIT": "0", "STANDIN_MESSAGE": "out of luck"}
        found = control.read(8001, environ, file)
        assert (found.completion, found.load_seconds) == ("hang", 5)
        assert (found.exit, found.message) == (0, "out of luck")
        assert control.read(8000, {}, file).load_seconds == 2

    def test_a_key_that_does_not_exist_is_an_error(self, tmp_path: Path) -> None:
        file = tmp_path / "control.json"
        file.write_text('{"no-such-key": "hang"}')
        with pytest.raises(TypeError):
            control.read(8000, {}, file)
