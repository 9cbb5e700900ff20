"""data/stacks.json as a frozen value: validated stacks, bad combinations; decides no gate. Pure."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from epyc_vllm_agent.codec import from_plain
from epyc_vllm_agent.plan.values import Stack


@dataclass(frozen=True, slots=True)
class Validated:
    """A stack that was run as a whole. `pinned`: the one that the recipe names."""

    name: str
    where: str  # "image" or "environment"
    pinned: bool
    vllm: str
    zentorch: str | None


@dataclass(frozen=True, slots=True)
class PlatformRules:
    """What vLLM's choice of a platform goes by."""

    zen: str
    stock: str
    zen_since: str  # the first vLLM with an in-tree Zen platform
    zen_plugins: tuple[str, ...]  # platform plugins that need a CPU as the Zen platform does


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A combination that starts badly or not at all; "error" must not be launched.

    It applies where every given part does: the torch release, zentorch, all of `env`, and none of
    `unless_env`.
    """

    code: str
    severity: str
    torch: str | None
    zentorch: bool
    env: tuple[tuple[str, str], ...]
    unless_env: tuple[tuple[str, str], ...]
    message: str
    hint: str

    def applies(self, stack: Stack | None, env: Iterable[tuple[str, str]]) -> bool:
        given = set(env)
        torch = release(stack.torch) if stack else ()
        wanted = release(self.torch)
        return (
            torch[: len(wanted)] == wanted
            and (not self.zentorch or bool(stack and stack.zentorch))
            and set(self.env) <= given
            and not set(self.unless_env) & given
        )


@dataclass(frozen=True, slots=True)
class KeyRules:
    """Which paths of vLLM's server its API key guards; `infers` is one of the others that does what
    the guarded ones do."""

    guards: tuple[str, ...]
    leaves_open: tuple[str, ...]
    infers: str


@dataclass(frozen=True, slots=True)
class Stacks:
    validated: tuple[Validated, ...]
    platforms: PlatformRules
    api_key: KeyRules
    known_bad: tuple[KnownBad, ...]

    @classmethod
    def from_json(cls, text: str) -> "Stacks":
        return from_plain(cls, json.loads(text))

    @property
    def pinned(self) -> Validated:
        return next(stack for stack in self.validated if stack.pinned)

    def is_validated(self, stack: Stack) -> bool:
        """Whether this very pair of vLLM and zentorch is in the table."""
        return any(
            (stack.name, release(stack.vllm), release(stack.zentorch))
            == (known.name, release(known.vllm), release(known.zentorch))
            for known in self.validated
        )

    def is_pinned(self, stack: Stack) -> bool:
        return release(stack.vllm) == release(self.pinned.vllm)

    def bad(self, stack: Stack | None, env: Iterable[tuple[str, str]]) -> tuple[KnownBad, ...]:
        """The bad combinations that a stack and an endpoint's variables make."""
        given = tuple(env)
        return tuple(known for known in self.known_bad if known.applies(stack, given))


def release(version: str | None) -> tuple[int, ...]:
    """The numbers of a version up to what is no number: "0.32.0+cpu" gives (0, 32, 0)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(number) for number in found[1].split(".")) if found else ()
