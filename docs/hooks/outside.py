"""Brings pages from outside of docs/ into the site, and points links to them there.

The pages of the repository link to each other by their paths in it, so that they can be read there
too. A link to a file that is no page of the site becomes plain text; one to a file that does not
exist stays as it is, and `mkdocs build --strict` reports it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

# path in the repository -> page of the site; of a folder of scripts, one page shows them all
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "cluster_specs/README.md": "cluster_specs.md",
    "cluster_specs": "cluster_specs.md",
    "examples": "examples.md",
    "examples/tutorials": "examples_tutorials.md",
}
_IN_REPOSITORY = {page: path for path, page in reversed(PAGES.items())}

_LINK = re.compile(r"(?P<text>!?\[[^\[\]]*\])\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside of docs/."""
    for page, path in _IN_REPOSITORY.items():
        source = ROOT / path
        content = _scripts(source) if source.is_dir() else source.read_text()
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points the links of a page to pages of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(_IN_REPOSITORY.get(here, f"docs/{here}"))

    def inside(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link["path"]))
        target = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(target) is not None:
            there = posixpath.relpath(target, posixpath.dirname(here) or ".")
            return f"{link['text']}({there}{link['anchor'] or ''})"
        is_text = (ROOT / path).exists() and not link["text"].startswith("!")
        return link["text"][1:-1] if is_text else link[0]

    return _LINK.sub(inside, markdown)


def _scripts(folder: Path) -> str:
    """Returns a page with the scripts of a folder."""
    name = folder.relative_to(ROOT)
    parts = [f"# {name}/"]
    for script in sorted(folder.glob("*.py")):
        parts.append(f"## {script.name}\n\n```python\n{script.read_text().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
