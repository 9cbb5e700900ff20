"""TCP ports that something listens on; knows nothing of who.

Files: /proc/net/tcp and tcp6, https://docs.kernel.org/networking/proc_net_tcp.html.
"""

import re

from epyc_vllm_agent.facts.files import read_text
from epyc_vllm_agent.paths import Paths

# "sl: local-address:port remote-address:port state ...", hexadecimal; 0A is TCP_LISTEN
# (include/net/tcp_states.h).
_LISTENING = re.compile(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:[0-9A-F]{4} 0A ", re.MULTILINE)


def read_listening_ports(paths: Paths) -> frozenset[int]:
    texts = (read_text(paths.at(f"/proc/net/{name}")) for name in ("tcp", "tcp6"))
    return frozenset(port for text in texts if text for port in parse_listening_ports(text))


def parse_listening_ports(text: str) -> frozenset[int]:
    return frozenset(int(port, 16) for port in _LISTENING.findall(text))
