"""The README's Python, run as written but for the number of steps (`make papers` runs it whole)."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def block() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    return code


def test_the_example_runs(capsys):
    code = block()
    assert "steps=500" in code
    names: dict[str, object] = {}
    exec(code.replace("steps=500", "steps=3"), names)
    table = capsys.readouterr().out
    assert "astronaut" in table
    assert "psnr" in table
    assert tuple(names["scores"]["psnr"].shape) == (2,)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target
