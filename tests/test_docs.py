"""What the documentation names is there, and what is there is named."""

import ast
import re
from pathlib import Path

import pytest

import tfdist
from docs.hooks.pictures import PICTURES
from tfdist import errors

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guides"
MODULES = sorted((ROOT / "tfdist").rglob("*.py"))
# In the table of a guide, what is code in the first column.
NAMED = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def literals() -> list[str]:
    """All text in the package's code, with … where a value is put in."""

    def flat(node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(flat(part) for part in node.values)
        return "…"

    nodes = (node for path in MODULES for node in ast.walk(ast.parse(path.read_text())))
    return [flat(node) for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)]


@pytest.fixture(scope="module")
def text() -> str:
    return "\n".join(literals())


def test_every_message_of_troubleshooting_is_in_the_code(text):
    messages = NAMED.findall((GUIDES / "troubleshooting.md").read_text())
    parts = [part.strip() for message in messages for part in message.split("…")]
    assert len(messages) > 30
    assert [part for part in parts if part not in text] == []


def test_environment_has_every_variable_and_no_other():
    """Those of the tests too."""
    page = (GUIDES / "environment.md").read_text()
    files = [*MODULES, *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile"]
    own = Path(__file__).resolve()
    code = "\n".join(path.read_text() for path in files if path != own)
    there = set(re.findall(r"TFDIST_[A-Z][A-Z_]*[A-Z]", code))
    assert set(re.findall(r"TFDIST_[A-Z_]+", page)) == there


def test_exit_codes_has_every_code_and_exception():
    page = (GUIDES / "exit_codes.md").read_text()
    codes = {str(code) for name, code in vars(errors).items() if name.startswith("EXIT_")}
    named = set(re.findall(r"\d+", " ".join(re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE))))
    # Those of the system and of shells are no constants of tfdist's.
    assert named == codes | {"126", "127", "137"}
    classes = [name for name in tfdist._EXPORTS if name.endswith("Error") or name == "Preempted"]
    assert [name for name in classes if name not in page] == []


def test_the_api_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = set(re.findall(r"^::: tfdist\.([\w.]+)$", page, re.MULTILINE))
    modules = {name for name, (_, attribute) in tfdist._EXPORTS.items() if attribute is None}
    assert {name for name in shown if "." not in name} == set(tfdist._EXPORTS) - modules, (
        "each is to have a line '::: tfdist.NAME' in docs/api.md"
    )
    inner = {name.partition(".")[0] for name in shown if "." in name}
    assert inner == modules


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages - set(listed) == set()
    assert len(listed) == len(set(listed))


def test_the_pictures_are_those_of_the_code():
    for name, draw in PICTURES.items():
        found = (ROOT / "docs" / name).read_text()
        assert found == draw(), "python -m docs.hooks.pictures draws them"
