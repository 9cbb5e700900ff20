"""Every path that the agent reads or writes on a host, below one root; touches none of them.

`Paths(root)` with another root is how captures, tests and `--sysroot` read another machine.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Paths:
    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """The absolute `path` (as written on a host) below this root."""
        return self.root / path.lstrip("/")

    @property
    def proc(self) -> Path:
        return self.at("/proc")

    @property
    def sys(self) -> Path:
        return self.at("/sys")

    @property
    def config_file(self) -> Path:
        return self.at("/etc/epyc-vllm/epyc-vllm.toml")

    @property
    def endpoints(self) -> Path:
        return self.at("/etc/epyc-vllm/endpoints.d")

    @property
    def shipped_endpoints(self) -> Path:
        """Endpoints that a package brings; those in /etc go over them."""
        return self.at("/usr/share/epyc-vllm/endpoints.d")

    @property
    def units(self) -> Path:
        return self.at("/etc/systemd/system")

    @property
    def quadlets(self) -> Path:
        return self.at("/etc/containers/systemd")

    @property
    def state(self) -> Path:
        return self.at("/var/lib/epyc-vllm")

    @property
    def plans(self) -> Path:
        return self.state / "plans"

    @property
    def begun(self) -> Path:
        """What a run is at work on: there while it is, and after it was killed."""
        return self.state / "begun.json"

    @property
    def models(self) -> Path:
        return self.state / "models"

    @property
    def reports(self) -> Path:
        return self.state / "reports"

    @property
    def cache(self) -> Path:
        return self.at("/var/cache/epyc-vllm")

    @property
    def run(self) -> Path:
        return self.at("/run/epyc-vllm")

    @property
    def watchdog(self) -> Path:
        """What the watchdog, an unprivileged user, leaves of each instance."""
        return self.run / "watchdog"

    @property
    def keys(self) -> Path:
        """API keys lent to the watchdog: in memory, and only its group may read them."""
        return self.at("/run/epyc-vllm-keys")
