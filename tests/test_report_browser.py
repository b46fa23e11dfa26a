"""report.html in a real browser: headless Chromium, driven by Playwright.

Debian: apt-get install chromium. Any Chromium or Chrome on the path is used.
"""

import csv
import re
import shutil
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from make_study import BASE, arm, make_study, shifted

from ablate.study.report import write

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path"),
]
# What keeps Chromium itself from the network, so that every request seen is the page's.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--disable-component-update", "--no-first-run", "--disable-quic"]  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Something of everything that a page can show."""
    arms = {
        "baseline": arm(BASE, seconds=10),
        "model.norm=post": arm(shifted(0.1), seconds=12, flops=6 * 10**9, parameters=9 * 10**6),
        "schedule.warmup=0": arm(shifted(0.001), seconds=9, parameters=90_000),
        "model.norm=post schedule.warmup=0": arm(shifted(2.0), seconds=14),
        "model.norm=none": arm([*shifted(0.3)[:3], "failed: the loss became NaN", None]),
    }
    folder = tmp_path_factory.mktemp("studies") / "everything"
    write(make_study(folder, arms, design="factorial"), allow=["seeds"])
    return folder


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield found
        found.close()


@pytest.fixture
def page(browser, study):
    """The report; whatever it complained of or asked for is a failure at the end."""
    page, wrong = browser.new_page(viewport={"width": 1280, "height": 800}), []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append("a dialog"))
    page.on("request", lambda request: wrong.append(request.url))
    page.goto((study / "report.html").as_uri())
    yield page
    page.close()
    assert [one for one in wrong if not one.startswith("data:")] == [
        (study / "report.html").as_uri()
    ]


def column(page, heading):
    """Texts of a column of the table of arms, from top to bottom."""
    return page.evaluate(
        """heading => {
            const table = document.getElementById("arms");
            const heads = [...table.tHead.rows[0].cells];
            const at = heads.findIndex(head => head.innerText.startsWith(heading));
            return [...table.tBodies[0].rows].map(row => row.cells[at].dataset.value);
        }""",
        heading,
    )


def test_a_heading_sorts_the_table_and_a_second_click_turns_it(page):
    for heading, key in (("arm", str), ("p", float)):
        before = column(page, heading)
        known = [value for value in before if value != ""]
        order = sorted(known, key=key)
        last = [""] * (len(before) - len(known))  # what has no number
        button = page.locator("#arms th button", has_text=heading).first
        for wanted in (order, order[::-1]):
            button.click()
            assert column(page, heading) == [*wanted, *last]


def test_every_mark_is_reached_by_mouse_keyboard_and_touch(browser, page, study):
    """A chart or table is one stop of Tab; the arrow keys lead to each of its marks."""
    for group in ("svg.chart >> nth=0", "#arms"):
        marks = page.locator(group).locator("[data-tip]")
        tips = marks.evaluate_all("all => all.map(one => one.dataset.tip)")
        assert marks.and_(page.locator('[tabindex="0"]')).count() == 1
        marks.first.focus()
        for tip in [*tips, tips[0]]:
            assert page.locator("#tip").text_content() == tip
            page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    point = page.locator("svg.chart .curve.c1 use").last
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    assert "model.norm=post" in page.locator("#tip").inner_text()
    assert page.locator('g.curve.lit[data-arm="model.norm=post"]').count() == 2  # line and band
    finger = browser.new_context(has_touch=True).new_page()
    finger.goto((study / "report.html").as_uri())
    finger.locator("#arms td[data-tip]").nth(3).tap()
    assert finger.locator("#tip").is_visible()
    finger.context.close()


def test_tables_are_copied_and_charts_saved(browser, study):
    page = browser.new_context(permissions=["clipboard-read", "clipboard-write"]).new_page()
    page.goto((study / "report.html").as_uri())
    assert not page.locator("#seeds td").first.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # on paper, everything is open
    copied = "navigator.clipboard.readText()"
    page.locator("button", has_text="Copy as CSV").last.click()
    page.locator("button", has_text="copied").wait_for()
    head, first, *_ = csv.reader(page.evaluate(copied).splitlines())
    assert head == ["arm", *(f"seed {n}" for n in range(5))]
    assert (first[0], [float(value) for value in first[1:]]) == ("baseline", BASE)
    links = page.locator("#seeds a").evaluate_all("all => all.map(one => one.pathname)")
    assert {unquote(link) for link in links} == {
        str(path.parent) for path in study.glob("*/result.json")
    }
    page.locator("button", has_text="Copy LaTeX").click()
    page.locator("button", has_text="copied").last.wait_for()
    assert page.evaluate(copied).strip() == (study / "table.tex").read_text().strip()
    for button in page.locator("button", has_text="Save as SVG").all()[:2]:
        with page.expect_download() as saved:
            button.click()
        text = saved.value.path().read_text()
        ElementTree.fromstring(text)
        assert "var(" not in text
        assert set(re.findall(r"#([mp]\w{10})\b", text)) <= set(re.findall(r' id="(\w+)"', text))
    page.context.close()


def test_the_page_may_ask_for_nothing_and_run_nothing_else(browser, study):
    """Even if a text were to become markup."""
    opened, sent = browser.new_page(), []

    def answer(route):
        sent.append(route.request.url)
        route.fulfill(body="")

    opened.route("https://example.org/**", answer)
    opened.goto((study / "report.html").as_uri())
    ran = opened.evaluate(
        """async () => {
            window.ran = [];
            const add = (name, given) => document.body.append(
                Object.assign(document.createElement(name), given));
            add("script", {textContent: "ran.push('script')"});
            add("img", {src: "https://example.org/x.png"});
            add("iframe", {src: "https://example.org/"});
            add("style", {textContent: "h1 { color: rgb(1, 2, 3) !important }"});
            document.body.insertAdjacentHTML("beforeend", "<b onclick='ran.push(1)' id=b>b</b>");
            document.getElementById("b").click();
            await fetch("https://example.org/").catch(() => {});
            await new Promise(done => setTimeout(done, 100));
            if (getComputedStyle(document.querySelector("h1")).color === "rgb(1, 2, 3)")
                ran.push("style");
            return ran;
        }"""
    )
    opened.close()
    assert (ran, sent) == ([], [])
