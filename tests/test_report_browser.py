"""report.html in a real browser: headless Chromium, driven by Playwright.

Debian: apt-get install chromium. Any Chromium or Chrome on the path is used.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from make_study import BASE, arm, make_study, shifted

from ablate.study.report import write

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path")
# What keeps Chromium itself from the network, so that every request seen is the page's.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--disable-component-update", "--no-first-run", "--disable-quic"]  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens reports; whatever a page complained of or asked for is a failure at the end."""
    wrong: list[str] = []
    pages: list[Any] = []

    def asked(request: Any) -> None:
        if not request.url.startswith("data:") and not request.url.endswith("/report.html"):
            wrong.append(request.url)

    def make(folder: Path, width: int = 1280) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append("a dialog"))
        page.on("request", asked)
        page.goto((folder / "report.html").as_uri())
        pages.append(page)
        return page

    yield make
    for page in pages:
        page.close()
    assert wrong == []


@pytest.fixture
def page(opened: Callable[..., Any], study: Path) -> Any:
    return opened(study)


def column(page: Any, heading: str) -> list[str]:
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
    for heading in ("arm", "val/loss", "p"):
        before = column(page, heading)
        button = page.locator("#arms th button", has_text=heading).first
        button.click()
        up = column(page, heading)
        button.click()
        known = [value for value in before if value != ""]
        order = sorted(known, key=float if heading != "arm" else str)
        last = [""] * (len(before) - len(known))  # what has no number
        assert up == [*order, *last]
        assert column(page, heading) == [*reversed(order), *last]


def test_every_plot_has_points_inside_it(page):
    plots = page.evaluate(
        """() => [...document.querySelectorAll("svg.chart")].map(svg => ({
            title: svg.getAttribute("aria-label"),
            points: svg.querySelectorAll("use").length,
            bad: [...svg.querySelectorAll("use, text")].filter(one => {
                const whole = svg.getBoundingClientRect(), box = one.getBoundingClientRect();
                return !(box.left >= whole.left && box.right <= whole.right
                    && box.top >= whole.top && box.bottom <= whole.bottom);
            }).length,
        }))"""
    )
    titles = " ".join(plot["title"] for plot in plots)
    for name in ("Learning curves", "by model.norm", "by training time", "floating-point"):
        assert name in titles
    assert all(plot["points"] > 0 and plot["bad"] == 0 for plot in plots), plots


def test_pointing_shows_the_numbers_and_brings_out_the_arm(page):
    point = page.locator("svg.chart .curve.c1 use").last
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    assert "model.norm=post" in page.locator("#tip").inner_text()
    assert page.locator('g.curve.lit[data-arm="model.norm=post"]').count() == 2  # line and band
    others = page.locator("g.curve:not(.lit)")
    fades = others.evaluate_all("all => all.map(one => getComputedStyle(one).opacity)")
    assert set(fades) == {"0.15"}
    page.locator("h1").hover()
    assert not page.locator("#tip").is_visible()


@pytest.mark.parametrize("width", [400, 1280])
def test_names_do_not_overlap_and_only_tables_scroll_sideways(opened, tmp_path, width):
    """Of many arms with alike values, and of many options with long names."""
    arms = {"baseline": arm(BASE, seconds=30)}
    for n in range(20):
        name = f"model.dim={n}" if n % 2 else f"model.attention=a_long_name_of_somebody_{n}"
        arms[name] = arm(shifted(0.01 + n / 1e4), seconds=30 + 3 * n)
    arms[f"data.path={'long' * 30}"] = arm(shifted(0.1))
    folder = make_study(tmp_path / "many", arms)
    write(folder)
    page = opened(folder, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    texts, overlaps = page.evaluate(
        """() => {
            let texts = 0, overlaps = [];
            for (const svg of document.querySelectorAll("svg.chart")) {
                const all = [...svg.querySelectorAll("text")];
                const boxes = all.map(one => one.getBoundingClientRect());
                texts += all.length;
                for (let a = 0; a < all.length; a++) for (let b = 0; b < a; b++) {
                    const [one, two] = [boxes[a], boxes[b]];
                    if (one.left < two.right - 1 && two.left < one.right - 1
                        && one.top < two.bottom - 2 && two.top < one.bottom - 2)
                        overlaps.push([all[a].textContent, all[b].textContent]);
                }
            }
            return [texts, overlaps];
        }"""
    )
    assert texts > 50
    assert not overlaps


# Texts that are markup or code where they are not escaped.
HOSTILE = (
    "<script>hacked = 1</script>",
    "</script><img src=https://example.org/x onerror=hacked=1>",
    '" onmouseover=hacked=1 style=background:url(https://example.org/x) x="',
    "' onfocus=hacked=1 autofocus x='",
    "</style><iframe src=javascript:hacked=1>",
    "</title><base href=https://example.org/><a href=javascript:hacked=1>x</a>",
    "[x](javascript:hacked=1) ![x](https://example.org/x) ```\n<img src=x onerror=hacked=1>",
    "&lt;img src=x onerror=hacked=1&gt; {{7*7}} ${7*7} $style \u2028 ]]><img src=x>",
)
OURS = """html head meta link title style body main div script h1 h2 p section ul li b dl dt dd
    details summary pre code table thead tbody tr th td button span wbr figure
    svg g path use defs clippath rect circle line polygon text tspan"""


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_is_run(opened, tmp_path, hostile):
    """A hostile text in every field that a study, its runs and their files hold."""
    kept = {"commit": hostile, "source": hostile, "host": hostile, "fingerprint": hostile}
    b, c, typed = f"{hostile}b", f"{hostile}c", [f"model.{hostile.partition('=')[0]}={hostile}"]
    own = {"overrides": typed, "tuned": {"optimizer.lr": 0.01}}
    arms = {
        "baseline": arm(BASE, seconds=10, **kept),
        hostile: arm(shifted(0.1), changes={hostile: b}, seconds=12, **kept),
        c: arm(shifted(0.3), changes={hostile: c}, **own),
        "failed": arm([f"failed: {hostile}"] * 5, changes={hostile: "d"}),
        "same": arm(BASE, changes={hostile: "e"}, no_effect=True),
        "two": arm(shifted(0.5), changes={hostile: b, "b": hostile}),
    }
    factors = {
        hostile: {option: [f"a={option}"] for option in ("a", b, c, "d")},
        "b": {"0": [], hostile: [f"b={hostile}"]},
    }
    folder = make_study(
        tmp_path / hostile.replace("/", "\u2215")[:60],
        arms,
        factors=factors,
        asks=f"{hostile}? {hostile}",
        sweep=hostile,
        tune={"optimizer.lr": [0.01, 0.1]},
        illegal={f"{hostile}f": hostile},
        excluded={f"{hostile}g": {hostile: hostile}},
        validations=3,
    )
    write(folder, allow=["seeds", "data", "code", "budget"])
    page = opened(folder)
    for mark in page.locator("[data-tip], th button, td").all()[:60]:
        mark.dispatch_event("mouseover")
        mark.dispatch_event("pointermove")
    found = page.evaluate(
        """() => {
            const all = [...document.querySelectorAll("*")];
            return {
                hacked: typeof hacked,
                names: all.map(one => one.tagName.toLowerCase()),
                events: all.flatMap(
                    one => one.getAttributeNames().filter(name => name.startsWith("on"))),
                links: all.map(one => one.getAttribute("href") ?? one.getAttribute("src"))
                    .filter(to => to !== null && !to.startsWith("#") && to !== "data:,"),
                said: document.body.textContent,
            };
        }"""
    )
    assert (found["hacked"], found["events"], found["links"]) == ("undefined", [], [])
    assert set(found["names"]) <= set(OURS.split())
    assert hostile.split()[0] in found["said"]
    text = (folder / "report.md").read_text()
    inside = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", text)  # a fence shows what is in it
    assert not re.search(r"(?<!\\)<\w|(?<!\\)\[x\]", inside)


def test_the_page_may_ask_for_nothing_and_run_nothing_else(browser, study):
    """Even if a text were to become markup."""
    opened = browser.new_page()
    sent: list[str] = []

    def answer(route: Any) -> None:
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
