"""Typed arguments of a config file, overlays, and errors that name the nearest key.

A config file is Python: `--config=configs/alfworld_aem.py:size=1.5b,quick` calls its `get_config("size=1.5b,quick")`,
which starts with `args = parse(text, size=("0.5b", "1.5b"), quick=False)` and ends with a complete, locked tree.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a sentence that names the nearest known names, and all of them when there are few."""
    known = sorted(set(known))
    # A dotted key is most often right in its last word or in its section, so both are compared.
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    leaf = name.rpartition(".")[2]
    near += [key for key in known if key.rpartition(".")[2] == leaf and key not in near][:3]
    if not near:
        leaves = {key.rpartition(".")[2]: key for key in known}
        near = [leaves[key] for key in difflib.get_close_matches(leaf, leaves, n=3, cutoff=0.6)]
    hint = f" Did you mean {' or '.join(repr(key) for key in near)}?" if near else ""
    listing = f" Known: {', '.join(known)}." if len(known) <= 20 else ""
    return (hint + listing).strip()


def parse(text: str | None, /, **spec: Any) -> Any:
    """Returns the arguments of a config string as a locked ConfigDict, one entry for each name in `spec`.

    `spec` maps each name to its default, whose type is the argument's type: False is set by the bare name
    (`quick`) or `quick=false`; numbers and strings by `seed=3`; a tuple lists the choices, the first one the
    default; None is a string that may be left out.

    Raises:
      ValueError: for an unknown or repeated name, a missing value, or one of the wrong type.
    """
    values = {name: default[0] if isinstance(default, tuple) else default for name, default in spec.items()}
    seen: set[str] = set()
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        name, has_value, word = (piece.strip() for piece in item.partition("="))
        if name not in spec:
            raise ValueError(f"unknown config argument {name!r}. {did_you_mean(name, spec)}")
        if name in seen:
            raise ValueError(f"config argument {name!r} is given twice in {text!r}")
        seen.add(name)
        values[name] = _typed(name, word if has_value else None, spec[name])
    config = ConfigDict(values)
    config.lock()
    return config


def _typed(name: str, word: str | None, default: Any) -> Any:
    if isinstance(default, bool):
        if word is None or word.lower() in _TRUE:
            return True
        if word.lower() in _FALSE:
            return False
        raise ValueError(f"config argument {name}={word} must be true or false, or the bare name")
    if not word:
        raise ValueError(f"config argument {name!r} needs a value, as in {name}={_example(default)}")
    if isinstance(default, tuple):
        texts = {str(choice): choice for choice in default}
        if word not in texts:
            raise ValueError(f"config argument {name}={word} is not a choice. {did_you_mean(word, texts)}")
        return texts[word]
    if default is None:
        return word
    try:
        return type(default)(word)
    except ValueError:
        raise ValueError(
            f"config argument {name}={word} must be a value of type {type(default).__name__}"
        ) from None


def _example(default: Any) -> str:
    return str(default[0]) if isinstance(default, tuple) else str(default if default is not None else "...")


def leaves(config: ConfigDict) -> dict[str, Any]:
    """Returns every leaf by its dotted key, in the order of the tree."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict) and len(value):
            flat |= {f"{key}.{rest}": leaf for rest, leaf in leaves(value).items()}
        else:
            flat[key] = value
    return flat


def overlay(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """Sets existing keys of `config`, given by dotted names, in place, and returns it.

    Types are kept: an int becomes a float where a float was, a list a tuple where a tuple was.

    Raises:
      ValueError: for a key that does not exist, a section given a plain value, or a value of another type.
    """
    for key, value in values.items():
        section: Any = config
        *parents, last = key.split(".")
        for name in parents:
            section = section[name] if isinstance(section, ConfigDict) and name in section else None
        if not isinstance(section, ConfigDict) or last not in section:
            raise ValueError(f"config has no key {key!r}. {did_you_mean(key, leaves(config))}")
        old = section[last]
        if isinstance(old, ConfigDict):
            if not isinstance(value, Mapping):
                raise ValueError(f"config.{key} is a section; set one of {', '.join(old)} in it")
            overlay(config, {f"{key}.{name}": leaf for name, leaf in value.items()})
            continue
        if isinstance(old, tuple) and isinstance(value, list):
            value = tuple(value)
        if isinstance(old, bool) != isinstance(value, bool) and old is not None:
            raise ValueError(f"config.{key}={value!r} must be of type {type(old).__name__}, as {old!r} is")
        try:
            section[last] = value
        except TypeError:
            raise ValueError(
                f"config.{key}={value!r} must be of type {type(old).__name__}, as {old!r} is"
            ) from None
    return config


def lock(config: ConfigDict) -> ConfigDict:
    """Locks the whole tree, so that a misspelt key raises instead of being added, and returns it."""
    config.lock()
    return config


def to_json(config: ConfigDict) -> str:
    """Returns the tree as indented JSON with sorted keys; tuples become lists."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_json(text: str) -> ConfigDict:
    """Returns the locked tree that `to_json` wrote; sequences come back as tuples, as configs hold them."""

    def tuples(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tuples(item) for key, item in value.items()}
        return tuple(tuples(item) for item in value) if isinstance(value, list) else value

    return lock(ConfigDict(tuples(json.loads(text))))


def diff(old: ConfigDict, new: ConfigDict, *, ignore: Sequence[str] = ()) -> list[str]:
    """Returns the sorted dotted keys whose values differ, or that only one tree has.

    Args:
      ignore: patterns of keys that may differ, such as "train.iterations" or "eval.*".
    """
    one, two = (
        json.loads(json.dumps(leaves(config), default=lambda leaf: leaf.to_dict())) for config in (old, new)
    )
    missing = object()
    changed = sorted(key for key in one.keys() | two.keys() if one.get(key, missing) != two.get(key, missing))
    return [key for key in changed if not any(fnmatch.fnmatchcase(key, pattern) for pattern in ignore)]


def explain(error: BaseException, config: ConfigDict | None) -> str:
    """Returns one line for an error raised while flags were parsed, with a suggestion for a misspelt key.

    ml_collections reports an unknown override by its last word only and wraps errors of a config file in a
    traceback; a user needs the key and the last line.
    """
    text = str(error)
    if "Error whilst parsing config file" in text:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        return re.sub(r"^(\w+\.)*\w+(Error|Exception): ", "", lines[-1].strip())
    if isinstance(error, OSError):
        return "cannot read the config file: " + text.strip().splitlines()[-1].strip()
    unknown = _unknown_overrides(config) if config is not None else []
    if unknown:
        known = leaves(config) if config is not None else {}
        return "\n".join(f"config has no key {key!r}. {did_you_mean(key, known)}" for key in unknown)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    return text or type(error).__name__


def _unknown_overrides(config: ConfigDict) -> list[str]:
    keys = [m[1] for arg in sys.argv[1:] if (m := re.match(r"--?(?:no)?config\.([\w.]+)", arg))]
    known = leaves(config)
    sections = {key.rsplit(".", depth)[0] for key in known for depth in range(1, key.count(".") + 1)}
    return [key for key in keys if key not in known and key not in sections]


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Returns the positional arguments after parsing all flags; prints one clear line and exits with 2 on an error.

    For `absl.app.run(main, flags_parser=parse_flags)`; the config flag is named `config`.
    """
    try:
        rest = flags.FLAGS(list(argv))
        if "config" in flags.FLAGS:
            dict(flags.FLAGS["config"].value or {})  # a file that does not load says so at its first use
        return rest
    except Exception as error:
        print(f"{argv[0]}: {explain(error, _config_of(argv))}", file=sys.stderr)
        sys.exit(2)


def _config_of(argv: Sequence[str]) -> Any:
    """Returns the config that `--config` names, without its overrides, or None where it does not load."""
    words = [match[1] for arg in argv if (match := re.match(r"--?config=(.+)", arg))]
    words += [after for arg, after in zip(argv, argv[1:]) if re.fullmatch(r"--?config", arg)]
    try:
        return config_flags.config_flags.ConfigFileFlagParser("config").parse(words[-1]) if words else None
    except Exception:  # the error being explained is the one that matters
        return None
