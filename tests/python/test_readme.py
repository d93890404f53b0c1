"""The examples of the README do what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def example(language: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, f"{len(blocks)} examples in {language}"
    return blocks[0]


def test_the_python_example_stays_within_its_budget(fresh_python: Callable[..., str]) -> None:
    peak, weights = map(int, re.findall(r"\d+", fresh_python(example("python"))))
    assert weights == 8 * (512 * 512 + 512) * 4
    assert 0 < peak <= 4 << 20


def test_the_cpp_example_is_the_file_that_the_build_compiles() -> None:
    assert example("cpp") == (ROOT / "examples" / "budget.cpp").read_text()


def test_every_file_the_documentation_links_to_exists() -> None:
    missing = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
    assert missing == []
