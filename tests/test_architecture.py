"""Rules of the tree that neither the linter nor import-linter can say."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("configs", "envs", "model", "rl", "sharding", "tools")
SOURCES = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")) + [ROOT / "main.py"]
MAX_LINES = 350


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), str(file))


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def mentions(file: Path, word: str) -> list[int]:
    """Lines that use `word` as a name, an attribute or an imported name; text and comments do not count."""
    lines = []
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Name | ast.Attribute) and word == getattr(
            node, "id", getattr(node, "attr", None)
        ):
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom | ast.Import):
            words = [part for alias in node.names for part in alias.name.split(".")]
            words += (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
            lines += [node.lineno] if word in words else []
    return lines


@pytest.mark.parametrize(
    ("word", "home"),
    [("PartitionSpec", "sharding/rules.py"), ("process_index", "sharding/multihost.py")],
)
def test_one_home(word: str, home: str) -> None:
    elsewhere = {
        name(file): lines for file in SOURCES if (lines := mentions(file, word)) and name(file) != home
    }
    assert not elsewhere, f"{word} belongs in {home}"


@pytest.mark.parametrize("word", ["jax", "pickle", "marshal", "flax"])
def test_environments_do_without(word: str) -> None:
    files = (file for file in SOURCES if name(file).startswith("envs/"))
    assert not {name(file): lines for file in files if (lines := mentions(file, word))}


def test_config_is_read_by_attribute() -> None:
    """`.get(key, default)` on a section would hide a misspelt key and a second default."""
    sections = set(_config()) | {"config", "settings"}
    found = []
    for file in SOURCES:
        for node in ast.walk(tree(file)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
            ):
                chain = ast.unparse(node.func.value)
                if re.fullmatch(r"(self\.)?config(\.\w+)*", chain) and set(chain.split(".")) & sections:
                    # An environment's config is a plain dict that came as JSON; its owner checks it.
                    found += [] if name(file).startswith("envs/") else [f"{name(file)}:{node.lineno}"]
    assert not found


def test_files_are_short() -> None:
    long = {
        name(file): count for file in SOURCES if (count := len(file.read_text().splitlines())) > MAX_LINES
    }
    assert not long, f"over {MAX_LINES} lines: split by noun"


def test_packages_are_empty() -> None:
    assert not [name(file) for file in SOURCES if file.name == "__init__.py" and file.read_text().strip()]


def test_no_drawers() -> None:
    files = [name(file) for file in SOURCES + sorted((ROOT / "tests").rglob("*.py"))]
    assert not [
        file for file in files if re.search(r"(^|/|_)(utils?|helpers?|common_lib|misc)(_|\.py|/)", file)
    ]


def test_every_config_leaf_is_read() -> None:
    """A key that nothing reads is a switch that does nothing.

    A leaf counts as read where it follows its section (`config.credit.aem.lam`, or `aem.lam` after
    `aem = config.credit.aem`), or where its section is handed on whole and its name is used somewhere.
    """
    from configs.arguments import leaves
    from configs.common import base

    pairs: set[tuple[str, str]] = set()
    whole: set[str] = set()
    names: set[str] = set()
    for file in SOURCES:
        if not name(file).startswith("configs/"):
            _collect(tree(file), pairs, whole, names)
    unread = []
    for key in leaves(base()):
        *sections, leaf = ["config", *key.split(".")]
        handed_on = any(section in whole for section in sections[1:])
        if (sections[-1], leaf) not in pairs and not (handed_on and leaf in names):
            unread.append(key)
    assert not unread


def _collect(module: ast.Module, pairs: set[tuple[str, str]], whole: set[str], names: set[str]) -> None:
    """Adds (owner, attribute) pairs, attributes that are used as values, and every other word of a module."""
    parents = {child: node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}
    aliases: dict[str, set[str]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign):
            for target, value in _assignments(node):
                if isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
                    aliases.setdefault(target.id, set()).add(value.attr)
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
            owner = node.value
            word = (
                owner.id
                if isinstance(owner, ast.Name)
                else owner.attr
                if isinstance(owner, ast.Attribute)
                else ""
            )
            pairs |= {(section, node.attr) for section in {word} | aliases.get(word, set())}
        if isinstance(node, ast.Attribute | ast.Name) and not isinstance(parents[node], ast.Attribute):
            word = node.attr if isinstance(node, ast.Attribute) else node.id
            around = parents[node]
            around = parents[around] if isinstance(around, ast.Tuple) else around
            if not isinstance(around, ast.Assign):
                whole |= {word} | (aliases.get(word, set()) if isinstance(node, ast.Name) else set())
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        if isinstance(node, ast.keyword | ast.arg) and node.arg:
            names.add(node.arg)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)


def _assignments(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _config() -> list[str]:
    from configs.common import base

    return list(base())
