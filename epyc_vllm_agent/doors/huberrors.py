"""What went wrong at the model hub, in the words of an admin; imports no hub library.

huggingface_hub's exceptions are told apart by the names in their class's ancestry, most special
first: GatedRepoError is a subclass of RepositoryNotFoundError. Nothing of their messages is
repeated, since they may quote URLs and headers.
"""

import errno
from collections.abc import Mapping

from epyc_vllm_agent.errors import ActionFailed, AgentError, ConfigError, Refused

_TIMEOUTS = ("TimeoutException", "TimeoutError")
_UNREACHABLE = (
    "OfflineModeIsEnabled",
    "ConnectError",
    "ProxyError",
    "NetworkError",
    "ConnectionError",
    "gaierror",
)
_CUT_OFF = ("RemoteProtocolError", "ReadError", "XetDownloadError")
_MALFORMED = (
    "FileMetadataError",
    "TooManyRedirects",
    "DecodingError",
    "SafetensorsParsingError",
    "UnsupportedProtocol",
    "InvalidURL",
    "ValueError",
    "TypeError",
    "KeyError",
    "AttributeError",
    "AssertionError",
    "RecursionError",
    "OverflowError",
)
CUT_OFF_HINT = "run the same command again: what is complete is kept"


class RateLimitedError(Exception):
    """HTTP 429, raised by our client before the library would sleep on it."""

    def __init__(self, wait_seconds: int | None) -> None:
        super().__init__("429")
        self.wait_seconds = wait_seconds


class ServerError(Exception):
    """HTTP 5xx, more often than is worth another try."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


def translate(
    error: BaseException, model: str, revision: str | None, *, has_token: bool, host: str
) -> AgentError | None:
    """The error for an admin; None for one that is no fault of the hub, the net or the disk."""
    for cause in _causes(error):
        found = (
            _ours(cause, host)
            or _access(cause, model, revision, has_token)
            or _net(cause, host)
            or _disk(cause)
        )
        if found is not None:
            return found
    if _is(error, *_MALFORMED, "LocalEntryNotFoundError", "HTTPError"):
        return malformed(host, model)
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what it was raised from: LocalEntryNotFoundError hides the real cause."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__
    return chain


def _is(error: BaseException, *names: str) -> bool:
    return any(ancestor.__name__ in names for ancestor in type(error).__mro__)


def _ours(error: BaseException, host: str) -> AgentError | None:
    if isinstance(error, AgentError):
        return error
    if isinstance(error, RateLimitedError):
        return rate_limited(host, error.wait_seconds)
    if isinstance(error, ServerError):
        return _server_error(host, error.status)
    return None


def _access(
    error: BaseException, model: str, revision: str | None, has_token: bool
) -> AgentError | None:
    if _is(error, "GatedRepoError"):
        return _licence(model) if has_token else _gated(model)
    if _is(error, "DisabledRepoError"):
        return Refused("model-disabled", f"the hub has disabled {model}", "choose another model")
    if _is(error, "RevisionNotFoundError"):
        return ConfigError(
            "unknown-revision",
            f"{model} has no revision {revision or 'main'}",
            "give a branch, tag or commit that the model's page on the hub lists",
        )
    if _is(error, "RepositoryNotFoundError"):
        return _unknown(model, has_token)
    if _is(error, "EntryNotFoundError") and not _is(error, "LocalEntryNotFoundError"):
        return ActionFailed(
            "missing-file",
            f"the hub lists a file of {model} and does not have it",
            "choose another revision, or try again later",
        )
    if _status(error) in (401, 403):
        return Refused(
            "bad-token",
            f"the hub does not accept the token for {model}",
            "make a new token with read access and put it into the token file",
        )
    return None


def _net(error: BaseException, host: str) -> AgentError | None:
    status = _status(error)
    if status == 429:
        return rate_limited(host, retry_after(_headers(error)))
    if status is not None and status >= 500:
        return _server_error(host, status)
    if _is(error, *_TIMEOUTS):
        return timed_out(host)
    if _is(error, *_CUT_OFF):
        return cut_off(host)
    if _is(error, *_UNREACHABLE):
        return unreachable(host)
    return None


def _disk(error: BaseException) -> AgentError | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ActionFailed(
            "disk-full",
            "the disk ran full while the model was being downloaded",
            "make room in the model cache and " + CUT_OFF_HINT,
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ActionFailed(
            "cache-unwritable",
            f"the model cache cannot be written ({error.strerror})",
            "make its file system writable"
            if error.errno == errno.EROFS
            else "run as root, or give the cache to the user who runs this",
        )
    if "Consistency check failed" in str(error):
        return cut_off("the hub")
    return None


def _status(error: BaseException) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _headers(error: BaseException) -> Mapping[str, str]:
    headers = getattr(getattr(error, "response", None), "headers", None)
    return headers if isinstance(headers, Mapping) else {}


def retry_after(headers: Mapping[str, str]) -> int | None:
    """Seconds of a Retry-After header; None for a date or nonsense."""
    value = headers.get("retry-after") or headers.get("Retry-After") or ""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else None


def _gated(model: str) -> Refused:
    return Refused(
        "gated-model",
        f"{model} is gated and no token was given",
        "accept its licence on its page on the hub and put a token of that account into the"
        " token file",
    )


def _licence(model: str) -> Refused:
    return Refused(
        "licence-not-accepted",
        f"{model} is gated and the account of the token has no access to it",
        "accept its licence on its page on the hub with the account that the token belongs to",
    )


def _unknown(model: str, has_token: bool) -> ConfigError:
    private = "or the token has no access to it" if has_token else "or it is private"
    return ConfigError(
        "unknown-model",
        f"the hub has no model {model}, {private}",
        "check the spelling (organisation/name); a private model needs a token that may read it",
    )


def rate_limited(host: str, wait_seconds: int | None) -> ActionFailed:
    wait = "a few minutes" if wait_seconds is None else f"{wait_seconds} seconds"
    return ActionFailed(
        "rate-limited",
        f"{host} limits the rate of requests and asks to wait {wait}",
        "try again then; requests with a token have a higher limit",
    )


def timed_out(host: str) -> ActionFailed:
    return ActionFailed(
        "hub-timeout", f"{host} did not answer in time", "try again; check the network and proxy"
    )


def stalled(host: str, seconds: float) -> ActionFailed:
    return ActionFailed(
        "hub-stalled",
        f"{host} has sent nothing for {seconds:.0f} seconds",
        "check the network and " + CUT_OFF_HINT,
    )


def cut_off(host: str) -> ActionFailed:
    return ActionFailed("hub-cut-off", f"{host} cut the transfer off", CUT_OFF_HINT)


def unreachable(host: str) -> ActionFailed:
    return ActionFailed(
        "hub-unreachable",
        f"{host} cannot be reached",
        "check network, proxy (https_proxy) and HF_ENDPOINT; a model in the cache needs no hub",
    )


def malformed(host: str, model: str) -> ActionFailed:
    return ActionFailed(
        "hub-malformed",
        f"{host} answered for {model} with something that is no hub's answer",
        "check HF_ENDPOINT and what a proxy may put in between",
    )


def _server_error(host: str, status: int) -> ActionFailed:
    return ActionFailed("hub-error", f"{host} failed with HTTP status {status}", "try again later")
