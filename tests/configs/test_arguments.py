"""Config arguments: typed values, overlays, near misses, differences, and errors as a user sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from configs import arguments

ROOT = Path(__file__).parents[2]
SPEC = dict(size=("0.5b", "1.5b"), quick=False, fast=True, seed=0, rate=1e-3, path=None)


@pytest.fixture
def config() -> ConfigDict:
    tree = {
        "seed": 0,
        "credit": {"aem": {"lam": 1.0, "on": True}, "estimator": "grpo"},
        "eval": {"splits": ("a", "b")},
    }
    return ConfigDict(tree)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", {}),
        (None, {}),
        ("quick", {"quick": True}),
        ("fast=false", {"fast": False}),
        ("size=1.5b,quick", {"size": "1.5b", "quick": True}),
        (" seed = 3 , rate=2e-4,path=/a=b", {"seed": 3, "rate": 2e-4, "path": "/a=b"}),
    ],
)
def test_parse(text: str | None, changed: dict) -> None:
    defaults = {"size": "0.5b", "quick": False, "fast": True, "seed": 0, "rate": 1e-3, "path": None}
    assert arguments.parse(text, **SPEC).to_dict() == defaults | changed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "quik",
            "unknown config argument 'quik'. Did you mean 'quick'? Known: fast, path, quick, rate, seed, size.",
        ),
        ("zzz", "unknown config argument 'zzz'. Known: fast,"),
        ("seed", "'seed' needs a value, as in seed=0"),
        ("seed=", "needs a value"),
        ("seed=x", "seed=x must be a value of type int"),
        ("seed=1.5", "must be a value of type int"),
        ("quick=maybe", "must be true or false"),
        ("size=2b", "size=2b is not a choice."),
        ("quick,quick", "given twice"),
    ],
)
def test_parse_errors(text: str, words: str) -> None:
    with pytest.raises(ValueError) as error:
        arguments.parse(text, **SPEC)
    assert words in str(error.value)


def test_overlay(config: ConfigDict) -> None:
    out = arguments.overlay(
        config, {"credit.aem.lam": 2, "credit": {"estimator": "rloo"}, "eval.splits": ["c"]}
    )
    assert out is config
    assert arguments.leaves(config) == {
        "seed": 0, "credit.aem.lam": 2.0, "credit.aem.on": True, "credit.estimator": "rloo", "eval.splits": ("c",),
    }  # fmt: skip
    assert isinstance(config.credit.aem.lam, float)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"credit.aem.lamb": 1}, "no key 'credit.aem.lamb'. Did you mean 'credit.aem.lam'"),
        ({"aem.lam": 1}, "Did you mean 'credit.aem.lam'"),
        ({"credit.aem": 1}, "config.credit.aem is a section; set one of"),
        ({"seed.x": 1}, "no key 'seed.x'"),
        ({"seed": "one"}, "config.seed='one' must be of type int"),
        ({"credit.aem.on": 1}, "must be of type bool"),
        ({"seed": True}, "must be of type int"),
    ],
)
def test_overlay_errors(config: ConfigDict, values: dict, words: str) -> None:
    before = config.to_json()
    with pytest.raises(ValueError) as error:
        arguments.overlay(config, values)
    assert words in str(error.value)
    assert config.to_json() == before


def test_locked(config: ConfigDict) -> None:
    arguments.lock(config)
    with pytest.raises(AttributeError):
        config.credit.aem.lamb = 2.0
    config.credit.aem.lam = 2.0


def test_json_round_trip(config: ConfigDict) -> None:
    back = arguments.from_json(arguments.to_json(config))
    assert back.to_dict() == config.to_dict()
    assert back.eval.splits == ("a", "b")
    assert back.is_locked
    assert arguments.diff(config, back) == []


def test_diff(config: ConfigDict) -> None:
    other = ConfigDict(config.to_dict())
    other.credit.aem.lam, other.eval.splits, other.seed = 0.5, ("a",), 4
    other.more = 1
    assert arguments.diff(config, other) == ["credit.aem.lam", "eval.splits", "more", "seed"]
    assert arguments.diff(config, other, ignore=["eval.*", "more", "seed"]) == ["credit.aem.lam"]


def test_command_line(tmp_path: Path) -> None:
    """What a user sees in one process each: a value that arrives, and one line for each kind of mistake."""
    (tmp_path / "c.py").write_text(
        "from ml_collections import ConfigDict\n"
        "from configs.arguments import parse\n"
        "def get_config(text=''):\n"
        "    args = parse(text, quick=False)\n"
        "    return ConfigDict({'quick': args.quick, 'aem': {'lam': 1.0}})\n"
    )
    script = (
        "import sys\n"
        "from absl import flags\n"
        "from ml_collections import config_flags\n"
        "from configs.arguments import parse_flags\n"
        "value = config_flags.DEFINE_config_file('config')\n"
        "for line in sys.stdin:\n"
        "    sys.argv = ['main.py', *line.split()]\n"
        "    try:\n"
        "        parse_flags(sys.argv)\n"
        "        print(value.value.to_json(), file=sys.stderr)\n"
        "    except SystemExit as stop:\n"
        "        print('exit', stop.code, file=sys.stderr)\n"
        "    for name in [n for n in flags.FLAGS if n.startswith('config.')]:\n"
        "        delattr(flags.FLAGS, name)\n"
        "    flags.FLAGS.unparse_flags()\n"
    )
    lines = [
        "--config=c.py:quick --config.aem.lam=2",
        "--config=c.py --config.aem.lamb=2",
        "--config=c.py:quik",
        "--config=d.py",
        "--config=c.py --workdri=x",
    ]
    done = subprocess.run(
        [sys.executable, "-c", script], input="\n".join(lines), text=True, capture_output=True, timeout=60,
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.stderr.splitlines() == [
        '{"quick": true, "aem": {"lam": 2.0}}',
        "main.py: config has no key 'aem.lamb'. Did you mean 'aem.lam'? Known: aem.lam, quick.",
        "exit 2",
        "main.py: unknown config argument 'quik'. Did you mean 'quick'? Known: quick.",
        "exit 2",
        "main.py: cannot read the config file: [Errno 2] No such file or directory: 'd.py'",
        "exit 2",
        "main.py: Unknown command line flag 'workdri'",
        "exit 2",
    ]
