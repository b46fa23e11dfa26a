"""report.html in a real browser: headless Chromium, driven by Playwright.

Debian: apt-get install chromium. Any Chromium or Chrome on the path is used.
"""

import re
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from unicodedata import normalize

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
    folder = make_study(
        tmp_path_factory.mktemp("studies") / "everything",
        {
            "baseline": arm(BASE, seconds=10),
            "model.norm=post": arm(shifted(0.1), seconds=12, flops=6 * 10**9, parameters=9 * 10**6),
            "schedule.warmup=0": arm(shifted(0.001), seconds=9, parameters=90_000),
            "model.norm=post schedule.warmup=0": arm(shifted(2.0), seconds=14),
            "model.norm=none": arm([*shifted(0.3)[:3], "failed: the loss became NaN", None]),
        },
        design="factorial",
    )
    write(folder, allow=["seeds"])
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, study: Path) -> Iterator[Any]:
    """The opened page; whatever it complained of or asked for is a failure at the end."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: wrong.append(message.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto((study / "report.html").as_uri())
    yield opened
    opened.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith("data:")] == [
        (study / "report.html").as_uri()
    ]


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


@pytest.mark.parametrize("heading", ["arm", "verdict", "val/loss", "difference", "p", "parameters"])
def test_a_heading_sorts_the_table_and_a_second_click_turns_it(page: Any, heading: str) -> None:
    before = column(page, heading)
    button = page.locator("#arms th button", has_text=heading).first
    button.click()
    up = column(page, heading)
    button.click()
    down = column(page, heading)
    known = [value for value in before if value != ""]
    if heading in ("arm", "verdict"):
        order = page.evaluate("texts => texts.sort(new Intl.Collator().compare)", known)
    else:
        order = sorted(known, key=float)
    assert len(set(order)) > 2
    last = [""] * (len(before) - len(known))  # what has no number
    assert up == [*order, *last]
    assert down == [*reversed(order), *last]


def test_every_plot_has_points_inside_it(page: Any) -> None:
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
    for plot in plots:
        assert plot["points"] > 0, plot
        assert plot["bad"] == 0, plot


def test_the_baseline_is_marked(page: Any) -> None:
    assert page.locator("#arms tr.base").count() == 1
    assert page.locator("#arms tr.base .badge").first.inner_text() == "baseline"


def test_pointing_shows_the_numbers_and_brings_out_the_arm(page: Any) -> None:
    point = page.locator("svg.chart .curve.c1 use").last
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    assert "model.norm=post" in page.locator("#tip").inner_text()
    assert page.locator("#tip").is_visible()
    lit = page.locator('g.curve.lit[data-arm="model.norm=post"]')
    assert lit.count() == 2  # its line and its band
    others = page.locator("g.curve:not(.lit)")
    fades = others.evaluate_all("all => all.map(one => getComputedStyle(one).opacity)")
    assert set(fades) == {"0.15"}
    assert page.locator('tr.lit[data-arm="model.norm=post"]').count() > 0
    page.locator("h1").hover()
    assert not page.locator("#tip").is_visible()


@pytest.mark.parametrize("width", [400, 1280])
def test_only_the_table_scrolls_sideways(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_long_name_does_not_widen_the_page(browser: Any, tmp_path: Path) -> None:
    arms = {"baseline": arm(BASE), f"data.path={'long' * 30}": arm(shifted(0.1))}
    folder = make_study(tmp_path / "long", arms)
    write(folder)
    opened = browser.new_page(viewport={"width": 400, "height": 900})
    opened.goto((folder / "report.html").as_uri())
    wide = opened.evaluate("document.documentElement.scrollWidth")
    opened.close()
    assert wide <= 400


def test_the_first_screen_has_verdicts_forest_plot_and_learning_curves(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    boxes = page.evaluate(
        """() => [".answer ul", "[aria-label*=differences]", "[aria-label^='Learning curves']"].map(
            name => document.querySelector(name).getBoundingClientRect().toJSON())"""
    )
    verdicts, forest, curves = boxes
    assert all(box["bottom"] <= 800 and box["right"] <= 1280 for box in boxes)
    assert verdicts["right"] <= min(forest["left"], curves["left"])
    assert forest["bottom"] <= curves["top"]


PAPER = (210 - 2 * 10) / 25.4 * 96  # pixels of CSS between the margins of A4, upright


def test_nothing_is_cut_off_on_paper(page: Any) -> None:
    page.emulate_media(media="print")
    page.set_viewport_size({"width": int(PAPER), "height": 1000})
    beyond = """wide => [...document.querySelectorAll("th, td, svg, p, li, dd")]
        .filter(one => one.getBoundingClientRect().right > wide).map(one => one.textContent)"""
    assert page.evaluate(beyond, PAPER) == []


def test_the_printed_table_has_all_columns(page: Any) -> None:
    pypdf = pytest.importorskip("pypdf", reason="pypdf reads the PDF")
    read = pypdf.PdfReader(BytesIO(page.pdf(format="A4", prefer_css_page_size=True)))
    sheet = read.pages[0].mediabox
    assert sheet.height > sheet.width
    text = normalize("NFKC", " ".join(one.extract_text() for one in read.pages))  # no ligatures
    heads = page.locator("#arms th").all_inner_texts()
    for words in " ".join(heads).split():
        assert words in text, words


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_the_ground_in_both_themes(page: Any, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    ratios = page.evaluate(
        """() => {
            const light = colour => {
                const part = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
                    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
            };
            const ground = light(getComputedStyle(document.body).backgroundColor);
            return [...document.querySelectorAll("h1, p, td, .verdict, svg text")].map(one => {
                const style = getComputedStyle(one);
                const ink = light(one.closest("svg") ? style.fill : style.color);
                const [high, low] = [Math.max(ink, ground), Math.min(ink, ground)];
                return (high + 0.05) / (low + 0.05);
            });
        }"""
    )
    assert len(ratios) > 50
    assert min(ratios) > 3


@pytest.mark.parametrize("width", [400, 1280])
def test_names_in_charts_do_not_overlap_and_grey_arms_are_brought_out(
    browser: Any, tmp_path: Path, width: int
) -> None:
    """Of many arms with alike values, and of many options with long names."""
    arms = {"baseline": arm(BASE, seconds=30)}
    for n in range(20):
        name = f"model.dim={n}" if n % 2 else f"model.attention=a_long_name_of_somebody_{n}"
        arms[name] = arm(shifted(0.01 + n / 1e4), seconds=30 + 3 * n)
    folder = make_study(tmp_path / "many", arms)
    write(folder)
    opened = browser.new_page(viewport={"width": width, "height": 900})
    opened.goto((folder / "report.html").as_uri())
    texts, overlaps = opened.evaluate(
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
    shown = "one => [getComputedStyle(one).fill, getComputedStyle(one).opacity]"
    band = opened.locator('.band.rest[data-arm="model.dim=3"] path')
    assert band.evaluate(shown) == ["none", "0"]
    opened.locator('tr[data-arm="model.dim=3"]').first.hover()
    assert band.evaluate(shown) == ["rgb(27, 31, 36)", "0.14"]
    opened.close()
    assert texts > 50
    assert not overlaps


# Texts that are markup or code where they are not escaped.
HOSTILE = (
    "<script>hacked = 1</script>",
    "</script><img src=https://example.org/x onerror=hacked=1>",
    "<svg/onload=hacked=1>",
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
def test_no_text_is_run(browser: Any, tmp_path: Path, hostile: str) -> None:
    """A hostile text in every field that a study, its runs and their files hold."""
    name = hostile.replace("/", "\u2215")  # of a folder
    kept = {"commit": hostile, "source": hostile, "host": hostile, "fingerprint": hostile}
    arms = {
        "baseline": arm(BASE, seconds=10, **kept),
        hostile: arm(shifted(0.1), changes={hostile: f"{hostile}b"}, seconds=12, **kept),
        f"{hostile}c": arm(
            shifted(0.3),
            changes={hostile: f"{hostile}c"},
            overrides=[f"model.{hostile.partition('=')[0]}={hostile}"],
            tuned={"optimizer.lr": 0.01},
        ),
        "failed": arm([f"failed: {hostile}"] * 5, changes={hostile: "d"}),
        "same": arm(BASE, changes={hostile: "e"}, no_effect=True),
        "two": arm(shifted(0.5), changes={hostile: f"{hostile}b", "b": hostile}),
    }
    factors = {
        hostile: {option: [f"a={option}"] for option in ("a", f"{hostile}b", f"{hostile}c", "d")},
        "b": {"0": [], hostile: [f"b={hostile}"]},
    }
    folder = make_study(
        tmp_path / name[:60],
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
    opened = browser.new_page()
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("dialog", lambda dialog: asked.append("a dialog"))
    opened.goto((folder / "report.html").as_uri())
    for mark in opened.locator("[data-tip], th button, td").all()[:60]:
        mark.dispatch_event("mouseover")
        mark.dispatch_event("pointermove")
    found = opened.evaluate(
        """() => ({
            hacked: typeof hacked,
            names: [...document.querySelectorAll("*")].map(e => e.tagName.toLowerCase()),
            events: [...document.querySelectorAll("*")].flatMap(
                e => e.getAttributeNames().filter(name => name.startsWith("on"))),
            links: [...document.querySelectorAll("[href], [src]")].map(
                e => e.getAttribute("href") ?? e.getAttribute("src"))
                .filter(to => !to.startsWith("#") && to !== "data:,"),
            said: document.body.textContent,
        })"""
    )
    opened.close()
    assert found["hacked"] == "undefined"
    assert set(found["names"]) <= set(OURS.split())
    assert found["events"] == []
    assert found["links"] == []
    assert [url for url in asked if not url.startswith("data:")] == [
        (folder / "report.html").as_uri()
    ]
    assert hostile.split()[0] in found["said"]
    text = (folder / "report.md").read_text()
    inside = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", text)  # a fence shows what is in it
    assert not re.search(r"(?<!\\)<\w|(?<!\\)\[x\]", inside)


def test_the_page_may_ask_for_nothing_and_run_nothing_else(browser: Any, study: Path) -> None:
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
    assert ran == []
    assert sent == []
