"""A model's config.json as typed values; knows no architecture and reads no file.

transformers writes these files and most keys may be missing: what a key's absence means is in
data/models.json (the defaults of transformers' configuration classes) and is filled in here.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epyc_vllm_agent.errors import ConfigError

# Larger than any count or size in a real config.json; what lies beyond is a slip or an attack.
LARGEST = 1 << 40
# Layers are gone through one by one; the deepest models have some hundred.
MOST_LAYERS = 2_000
_LONGEST_NAME = 200  # of a class, a layer's type, a method
# Where the language model's part of a multimodal config sits, outermost first.
TEXT_SECTIONS = ("thinker_config", "text_config", "language_config", "llm_config")


def parse_object(text: str, path: str, model: str) -> dict[str, object]:
    """The JSON object in `text`. Bare Infinity and NaN pass: Nemotron-H's config.json has one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(model, path, f"is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad(model, path, "does not hold a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class HfConfig:
    """One section of config.json; every getter checks what it returns.

    Getters take several names, the first that is there wins: the same thing is called
    num_attention_heads, n_head or num_heads by different models.
    """

    model: str
    values: Mapping[str, object]
    defaults: Mapping[str, object] = field(default_factory=dict)
    path: str = "config.json"

    def wrong(self, what: str) -> ConfigError:
        return _bad(self.model, self.path, what)

    def raw(self, *names: str) -> object:
        for name in names:
            if (value := self.values.get(name)) is not None:
                return value
        # A null that was written down means "none" and hides the default ("sliding_window": null).
        if any(name in self.values for name in names):
            return None
        return next((self.defaults[name] for name in names if name in self.defaults), None)

    def integer(self, *names: str) -> int | None:
        value = self.raw(*names)
        if value is None or isinstance(value, bool):
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int):
            return None
        if not 0 <= value <= LARGEST:
            raise self.wrong(f"has {names[0]} = {value}, which cannot be")
        return value

    def need(self, *names: str, most: int = LARGEST) -> int:
        """A positive integer that the arithmetic cannot do without."""
        value = self.integer(*names)
        if not value:
            raise self.wrong(f"names no {names[0]}")
        if value > most:
            raise self.wrong(f"has {names[0]} = {value}, which cannot be")
        return value

    def number(self, *names: str) -> float | None:
        """A number of any size; None also for Infinity and NaN, which JSON in Python lets pass."""
        value = self.raw(*names)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if abs(value) <= sys.float_info.max else None

    def flag(self, name: str, absent: bool = False) -> bool:
        value = self.raw(name)
        return value if isinstance(value, bool) else absent

    def text(self, *names: str) -> str | None:
        """A text of one line: it may come before an administrator's eyes."""
        value = self.raw(*names)
        if not isinstance(value, str):
            return None
        if not value.isprintable() or len(value) > MOST_LAYERS:
            raise self.wrong(f"has a text for {names[0]} that cannot be")
        return value

    def strings(self, name: str) -> tuple[str, ...] | None:
        value = self._items(name)
        if value is None or not all(isinstance(item, str) for item in value):
            return None
        found = tuple(map(str, value))
        if any(not item.isprintable() or len(item) > _LONGEST_NAME for item in found):
            raise self.wrong(f"has a name in {name} that cannot be")
        return found

    def integers(self, name: str) -> tuple[int, ...] | None:
        items = self._items(name)
        if items is None or not all(isinstance(item, int) for item in items):
            return None
        found = tuple(item for item in items if isinstance(item, int))
        if any(not 0 <= item <= LARGEST for item in found):
            raise self.wrong(f"has a number in {name} that cannot be")
        return found

    def section(self, name: str) -> "HfConfig | None":
        value = self.raw(name)
        if not isinstance(value, dict):
            return None
        return HfConfig(self.model, value, path=self.path)

    def sections(self, name: str) -> tuple["HfConfig", ...]:
        """The objects of a list; what is no object there is left out."""
        return tuple(
            HfConfig(self.model, item, path=self.path)
            for item in self._items(name) or ()
            if isinstance(item, dict)
        )

    def _items(self, name: str) -> Sequence[object] | None:
        """A list, which in these files has an item for each layer at most."""
        value = self.raw(name)
        if isinstance(value, list) and len(value) > MOST_LAYERS:
            raise self.wrong(f"has a list {name} that is longer than any model is deep")
        return value if isinstance(value, list) else None

    @property
    def model_type(self) -> str:
        return self.text("model_type") or ""

    def language_model(self, defaults: Mapping[str, Mapping[str, object]]) -> "HfConfig":
        """The section that describes the language model, with its type's defaults filled in."""
        current = self
        for name in TEXT_SECTIONS:
            current = current.section(name) or current
        model_type = current.model_type or self.model_type
        return HfConfig(self.model, current.values, defaults.get(model_type, {}), self.path)


def _bad(model: str, path: str, what: str) -> ConfigError:
    return ConfigError(
        "bad-model-config",
        f"{path} of {model} {what}",
        "choose another revision, or report it to the publisher of the model",
    )
