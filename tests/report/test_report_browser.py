"""The report in a real browser: verdicts, slider, no error, nothing from outside, phone width, print."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import PATIENCE, chromium, visit
from campaign_folder import build
from leakscope.audit.cell import CELLS, read_manifest
from leakscope.audit.findings import Level
from leakscope.report.html import render, write_file
from leakscope.report.load import load
from leakscope.report.pdf import print_pdf
from leakscope.report.serve import make_server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with markup in every name: what holds for it holds for any."""
    folder = build(tmp_path_factory.mktemp("campaign"), hostile=True)
    return write_file(folder / "report.html", render(load(folder)))


def test_on_a_desk(browser: Any, report: Path) -> None:
    with visit(browser, report.as_uri(), viewport={"width": 1200, "height": 900}) as seen:
        page = seen.page
        assert page.locator(".headline").inner_text() == "Images come back exactly."
        chips = page.locator(".card .chip").all_inner_texts()
        assert chips == ["exact", "recognisable", "traces", "nothing found", "nothing found", "unknown"]
        assert set(chips) == {str(level) for level in Level}
        images = page.locator("img").evaluate_all("all => all.map(one => one.complete && one.naturalWidth)")
        assert images
        assert all(images)
        page.locator("#filter").fill("refused")
        assert page.locator("#shown").inner_text().startswith("6 of ")
        page.locator(".ladder td a").first.click()
        assert page.locator("#finding-1").get_attribute("open") is not None
        assert seen.problems == []


def test_the_slider_moves_by_keyboard_and_by_hand(browser: Any, report: Path) -> None:
    with visit(browser, report.as_uri()) as seen:
        pair = seen.page.locator(".compare").first
        slider, original = pair.locator("input"), pair.locator(".before")

        def cut() -> str:
            return original.evaluate("one => getComputedStyle(one).clipPath")

        half = cut()
        slider.focus()
        for _ in range(10):
            seen.page.keyboard.press("ArrowRight")
        assert slider.input_value() == "60"
        further = cut()
        assert further != half
        box = slider.bounding_box()
        slider.click(position={"x": box["width"] * 0.2, "y": box["height"] / 2})
        assert 10 <= int(slider.input_value()) <= 30
        assert cut() not in (half, further)
        assert slider.get_attribute("aria-valuetext") == f"{slider.input_value()} percent original"
        assert seen.problems == []


def test_on_a_phone_nothing_sticks_out(browser: Any, report: Path) -> None:
    with visit(browser, report.as_uri(), viewport={"width": 360, "height": 740}) as seen:
        seen.page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
        cards = [one.bounding_box() for one in seen.page.locator(".card").all()]
        assert len({round(card["x"]) for card in cards}) == 1  # one column
        papers: list[str] = []
        for scheme in ("light", "dark"):
            seen.page.emulate_media(color_scheme=scheme)
            papers.append(seen.page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor"))
        assert papers == ["rgb(251, 250, 247)", "rgb(20, 23, 27)"]
        assert seen.problems == []


def test_on_paper(browser: Any, report: Path) -> None:
    with visit(browser, report.as_uri(), viewport={"width": 794, "height": 1123}, color_scheme="dark") as seen:
        seen.page.emulate_media(media="print")
        pair = seen.page.locator(".compare").first
        assert not pair.locator("input").is_visible()
        before, after = pair.locator(".before").bounding_box(), pair.locator(".after").bounding_box()
        assert before["x"] + before["width"] <= after["x"] + 1  # side by side, not one over the other
        assert not seen.page.locator("nav").is_visible()
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 794
        paper = seen.page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        assert seen.problems == []


def test_the_pdf_has_a4_pages(browser: Any, report: Path) -> None:
    pdf = print_pdf(report, report.with_suffix(".pdf")).read_bytes()
    assert pdf.startswith(b"%PDF-")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 3 <= pages <= 60
    width, height = (float(value) for value in re.search(rb"/MediaBox\s*\[0 0 ([\d.]+) ([\d.]+)\]", pdf).groups())
    assert (round(width / 72 * 25.4), round(height / 72 * 25.4)) == (210, 297)


def test_a_running_campaign_is_followed(browser: Any, tmp_path: Path) -> None:
    sync = pytest.importorskip("playwright.sync_api")
    sync.expect.set_options(timeout=PATIENCE)
    folder = build(tmp_path / "campaign", hostile=True)
    manifest = read_manifest(folder)
    record = folder / CELLS / manifest.cells[0].key / "record.json"
    total, text = len(manifest.cells), record.read_text(encoding="utf-8")
    record.unlink()
    with make_server(tmp_path, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with visit(browser, server.url, home=(server.url, "data:")) as seen:
                seen.page.locator("a.campaign").click()
                first = seen.page.locator("a.cell .status").first
                sync.expect(first).to_have_text("not run")
                sync.expect(seen.page.locator("[data-done]")).to_have_text(str(total - 1))
                record.write_text(text, encoding="utf-8")
                sync.expect(first).to_have_text("finished")
                sync.expect(seen.page.locator("[data-done]")).to_have_text(str(total))
                seen.page.locator("a.cell").first.click()
                assert seen.page.locator(".large img").count() == 4
                seen.page.go_back()
                seen.page.locator("[data-report]").click()
                assert seen.page.locator(".headline").inner_text() == "Images come back exactly."
                assert seen.problems == []
        finally:
            server.shutdown()
            thread.join()
