"""The model hub: resolve, describe without weights, download; the only importer of huggingface_hub.

Everything is bounded: a description as a whole, a download by how long no byte arrives. The
library is imported where it is used, since a model in the cache needs neither it nor the hub. The
Debian package brings a copy of its own for hosts that have none, or one too old.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from epyc_vllm_agent.doors.hubcache import (
    COMMIT,
    MAIN,
    TEXT_LIMIT_BYTES,
    Cache,
    Repository,
    check_model_id,
    check_revision,
    check_room,
    directory_files,
    read_tensors,
    read_texts,
    repository_of,
    require_pulled,
)
from epyc_vllm_agent.doors.huberrors import (
    RateLimitedError,
    ServerError,
    cut_off,
    malformed,
    retry_after,
    stalled,
    timed_out,
    translate,
)
from epyc_vllm_agent.doors.hubwork import Meter, bar_class, run_all, within
from epyc_vllm_agent.errors import ActionFailed, ConfigError
from epyc_vllm_agent.facts.catalog import Registry, shipped_registry
from epyc_vllm_agent.facts.checkpoint import CONFIG, TEXT_FILES, read_checkpoint
from epyc_vllm_agent.facts.model import ModelFacts, RepoFile
from epyc_vllm_agent.facts.weights import HEADER_LIMIT, Tensor, choose_weight_files, tensor
from epyc_vllm_agent.plan.stacks import release

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_T = TypeVar("_T")

_STREAMS = 4  # files at a time
_LONGEST_WAIT_SECONDS = 5  # that a failing hub may ask for before it is asked again
_SERVER_ERRORS = 3  # in a row, before the hub counts as broken
_OLDEST = (1, 0)  # huggingface_hub: the first with an httpx client that can be set up
_PACKAGED = Path(sys.prefix) / "share/epyc-vllm/python"


class Hub:
    """A model hub and the cache that its models are kept in.

    `endpoint` None is the library's own (HF_ENDPOINT or the public hub); a token is used only if
    it is given here. `registry` tells what the vLLM that will serve lists; it is asked once the
    model is there. `fallback` holds why the last description came from the cache, if it did.
    """

    def __init__(
        self,
        cache: Path,
        *,
        endpoint: str | None = None,
        token: str | None = None,
        budget_seconds: float = 60.0,
        stall_seconds: float = 60.0,
        registry: Callable[[], Registry] = shipped_registry,
    ) -> None:
        self._cache = Cache(cache)
        self._endpoint = endpoint
        self._token = token
        self._budget_seconds = budget_seconds
        self._stall_seconds = stall_seconds
        self._registry = registry
        self._deadline = 0.0
        self._server_errors = 0
        self.requests = 0  # sent to the hub by this object
        self.fallback: ActionFailed | None = None

    def describe(
        self, model: str, revision: str | None = None, *, offline: bool = False
    ) -> ModelFacts:
        """The facts of a model by its metadata and small files; no weights are downloaded.

        A commit that is already in the cache is described without the hub, and so is a branch
        when the hub cannot be reached. `offline` never asks.
        """
        check_model_id(model)
        check_revision(revision or MAIN)
        self.fallback = None
        self._deadline = time.monotonic() + self._budget_seconds
        known = self._known(model, revision)
        if known and (offline or COMMIT.fullmatch(revision or "")):
            return self._read(model, known)
        if offline:
            raise _not_cached(model, revision)
        try:
            repository = self._look_up(model, revision)
            self._fetch_texts(model, repository)
        except ActionFailed as error:
            if known is None:
                raise
            self.fallback = error
            return self._read(model, known)
        repository = replace(repository, tensors=self._remote_tensors(model, repository))
        self._cache.note(model, revision, repository)
        return self._read(model, repository)

    def cached(self, model: str, revision: str | None = None) -> Path | None:
        """The snapshot directory if all that a server needs is in it; asks no hub."""
        known = self._known(check_model_id(model), check_revision(revision or MAIN))
        if known is None:
            return None
        facts = self._read(model, known)
        if self._cache.missing(model, known.commit, facts.files):
            return None
        return self._cache.snapshot(model, known.commit)

    def fetch(
        self,
        model: str,
        commit: str,
        files: Sequence[RepoFile],
        progress: Progress | None = None,
    ) -> Path:
        """Download `files` (ModelFacts.files) of a commit and return the snapshot directory.

        Files that are already there are kept. Room on the disk is checked before the first byte.
        """
        check_model_id(model)
        if not COMMIT.fullmatch(commit):
            raise ConfigError("bad-revision", f"{commit!r} is not a commit")
        missing = self._cache.missing(model, commit, files)
        total = sum(file.size_bytes or 0 for file in files)
        meter = Meter(total - sum(file.size_bytes or 0 for file in missing), total)
        if missing:
            check_room(self._cache.root, model, sum(file.size_bytes or 0 for file in missing))
            self._cache.sweep(model)
            self._cache.discard(model, commit, missing)
            self._download(model, commit, missing, meter, progress)
            if self._cache.missing(model, commit, missing):
                raise cut_off(self._host)
        if progress is not None:
            progress(total, total)
        return self._cache.snapshot(model, commit)

    @property
    def _host(self) -> str:
        endpoint = self._endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        return urlsplit(endpoint).hostname or "the hub"

    def _known(self, model: str, revision: str | None) -> Repository | None:
        """What the cache holds of a revision: its listing and at least its config."""
        commit = self._cache.commit(model, revision)
        if commit is None or not (self._cache.snapshot(model, commit) / CONFIG).is_file():
            return None
        found = self._cache.repository(model, commit)
        texts = [file for file in found.files if file.path in TEXT_FILES] if found else []
        return None if self._cache.missing(model, commit, texts) else found

    def _read(self, model: str, repository: Repository) -> ModelFacts:
        snapshot = self._cache.snapshot(model, repository.commit)
        texts = read_texts(snapshot, [file.path for file in repository.files])
        weights = choose_weight_files(repository.files, texts, model)
        tensors = repository.tensors
        if not tensors and not self._cache.missing(model, repository.commit, weights):
            tensors = read_tensors(snapshot, weights)
        return read_checkpoint(
            model,
            repository.commit,
            repository.files,
            texts,
            repository.pipeline_tag,
            tensors=tensors,
            registry=self._registry(),
        )

    def _look_up(self, model: str, revision: str | None) -> Repository:
        api = self._api()
        info = self._ask(
            model,
            revision,
            lambda: api.model_info(
                model, revision=revision, files_metadata=True, timeout=self._left()
            ),
        )
        files = [(entry.rfilename, entry.size) for entry in info.siblings or ()]
        try:
            return repository_of(info.sha, files, info.pipeline_tag)
        except ValueError as error:
            raise malformed(self._host, model) from error

    def _fetch_texts(self, model: str, repository: Repository) -> None:
        sizes = {file.path: file.size_bytes or 0 for file in repository.files}
        wanted = [path for path in TEXT_FILES if path in sizes]
        for path in wanted:
            if sizes[path] > TEXT_LIMIT_BYTES:
                raise malformed(self._host, model)
            file = RepoFile(path, sizes[path])
            if self._cache.missing(model, repository.commit, [file]):
                self._cache.discard(model, repository.commit, [file])
                call = partial(self._get, model, repository.commit, path)
                self._ask(model, repository.commit, call)

    def _remote_tensors(self, model: str, repository: Repository) -> tuple[Tensor, ...]:
        """The header of a model in one file: it has no index that would name its tensors."""
        weights = choose_weight_files(repository.files, {}, model)
        if len(weights) != 1 or not weights[0].path.endswith(".safetensors"):
            return ()
        (file,) = weights
        call = partial(
            self._api().parse_safetensors_file_metadata,
            model,
            file.path,
            revision=repository.commit,
        )
        try:
            header = self._ask(model, repository.commit, call)
        except ActionFailed:
            return ()  # the file's size tells nearly as much
        try:
            tensors = tuple(
                tensor(name, entry.dtype, entry.shape, entry.data_offsets)
                for name, entry in header.tensors.items()
            )
        except ValueError:
            return ()
        stored = sum(one.stored_bytes for one in tensors)
        fits = file.size_bytes is None or 0 < file.size_bytes - stored <= HEADER_LIMIT
        return tensors if fits else ()

    def _download(
        self,
        model: str,
        commit: str,
        missing: Sequence[RepoFile],
        meter: Meter,
        progress: Progress | None,
    ) -> None:
        """Fetch the files, small ones first, while this thread reports and looks for a stall."""
        self._library()
        order = sorted(missing, key=lambda file: file.size_bytes or 0)
        calls = [partial(self._get, model, commit, file.path, meter) for file in order]
        try:
            run_all(calls, _STREAMS, lambda: self._watch(meter, progress))
        except Exception as error:
            raise self._explain(error, model, commit) from error

    def _watch(self, meter: Meter, progress: Progress | None) -> None:
        if progress is not None:
            progress(meter.done, meter.total)
        if meter.idle_seconds > self._stall_seconds:
            raise stalled(self._host, self._stall_seconds)

    def _get(self, model: str, commit: str, path: str, meter: Meter | None = None) -> None:
        self._library()
        from huggingface_hub import hf_hub_download

        hf_hub_download(
            model,
            path,
            revision=commit,
            cache_dir=self._cache.root,
            endpoint=self._endpoint,
            token=self._token or False,
            tqdm_class=bar_class(meter or Meter(0, 0)),
        )

    def _ask(self, model: str, revision: str | None, call: Callable[[], _T]) -> _T:
        """The result of a call to the hub, or its error for an admin, within the budget."""
        try:
            return within(self._left(), call)
        except TimeoutError as error:
            raise timed_out(self._host) from error
        except Exception as error:
            raise self._explain(error, model, revision) from error

    def _explain(self, error: BaseException, model: str, revision: str | None) -> BaseException:
        known = translate(
            error, model, revision, has_token=self._token is not None, host=self._host
        )
        return known or error

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    def _api(self) -> "HfApi":
        self._library()
        from huggingface_hub import HfApi

        return HfApi(endpoint=self._endpoint, token=self._token or False)

    def _library(self) -> None:
        """Import and set up huggingface_hub: our limits on its client, no telemetry, no chatter.

        Its telemetry asks the public hub even where another endpoint is set. Xet keeps a cache
        and connections of its own, beyond these limits; HF_HUB_DISABLE_XET=0 brings it back.
        """
        provide_library()
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
        from huggingface_hub import get_session, set_client_factory
        from huggingface_hub.utils import logging

        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        if getattr(get_session(), "owner", None) is self:
            return
        client_class: Any = type(get_session())
        own_hook = get_session().event_hooks["request"][0]  # of the library, for its offline mode

        def factory() -> Any:
            hooks = {"request": [own_hook, self._count], "response": [self._judge]}
            client = client_class(event_hooks=hooks, follow_redirects=True, timeout=None)
            client.owner = self
            return client

        set_client_factory(factory)

    def _count(self, _request: object) -> None:
        self.requests += 1

    def _judge(self, response: Any) -> None:
        """Stop at once where the library would sleep and try again for minutes."""
        if response.status_code == 429:
            raise RateLimitedError(retry_after(response.headers))
        if response.status_code < 500:
            self._server_errors = 0
            return
        self._server_errors += 1
        wait = retry_after(response.headers) or 0
        if self._server_errors >= _SERVER_ERRORS or wait > _LONGEST_WAIT_SECONDS:
            raise ServerError(response.status_code)


def provide_library(packaged: Path = _PACKAGED) -> None:
    """Makes huggingface_hub importable: the host's own where it is new enough, else `packaged`."""
    from importlib.metadata import PackageNotFoundError, version  # a tenth of a `plan`

    try:
        found = version("huggingface_hub")
    except PackageNotFoundError:
        found = None
    if release(found) >= _OLDEST:
        return
    if not packaged.is_dir():
        raise ActionFailed(
            "no-hub-library",
            f"huggingface_hub {found} is too old" if found else "huggingface_hub is missing",
            f"install version {_OLDEST[0]}.{_OLDEST[1]} or later for {sys.executable}, or name a "
            "directory with the model",
        )
    sys.path.insert(0, str(packaged))


def describe_directory(
    path: Path, registry: Callable[[], Registry] = shipped_registry
) -> ModelFacts:
    """The facts of a model that lies in a local directory."""
    if not path.is_dir():
        raise ConfigError(
            "no-such-directory",
            f"{path} is not a directory",
            "name a directory with config.json and weights, or a model id (organisation/name)",
        )
    try:
        files = directory_files(path)
        texts = read_texts(path, [file.path for file in files])
        weights = choose_weight_files(files, texts, str(path), as_it_is=True)
        require_pulled(path, weights)
        tensors = read_tensors(path, weights)
    except OSError as error:
        raise ActionFailed(
            "unreadable-model",
            f"the model directory {path} cannot be read: {error.filename} ({error.strerror})",
            "the files must be readable by root and by the user that the server runs as",
        ) from error
    return read_checkpoint(str(path), None, files, texts, tensors=tensors, registry=registry())


def _not_cached(model: str, revision: str | None) -> ActionFailed:
    return ActionFailed(
        "not-cached",
        f"{model} at {revision or MAIN} is not in the model cache and the hub may not be asked",
        "run `epyc-vllm enable` once with network, or copy the model into a directory",
    )
