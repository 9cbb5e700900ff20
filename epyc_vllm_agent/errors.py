"""What can go wrong, with its exit code; knows nothing of how it is printed.

Exit codes are a contract (man page, tests): 0 done, 1 an action failed, 2 usage or configuration,
3 refused by a gate, a fit or a check, 4 another run holds the lock, 5 doctor found errors,
6 `apply --check` found changes to make, 130 interrupted.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    LOCKED = 4
    FINDINGS = 5
    CHANGES = 6
    INTERRUPTED = 130


class AgentError(Exception):
    """A failure that a sysadmin can act on.

    `code` is a stable slug, `message` one sentence that says what is wrong with which thing,
    `hint` what to do next. Anything that is not an AgentError is a bug and shows its traceback.
    """

    exit_code = ExitCode.FAILED
    details: str | None = None  # shown before the message: log lines, say
    outcome: str | None = None  # shown after it: in which state things are now

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class ActionFailed(AgentError):
    """Something was tried and did not work (a download, a start, a write)."""


class ConfigError(AgentError):
    """A configuration file or the command line is wrong."""

    exit_code = ExitCode.USAGE


class Refused(AgentError):
    """A gate, a fit or a check says no; nothing was changed."""

    exit_code = ExitCode.REFUSED


class Locked(AgentError):
    """Another run holds the lock."""

    exit_code = ExitCode.LOCKED
