"""The report in a real browser: Chromium of the system, driven without a display.

Marker `browser`: the README's test command installs no browser; .ci/run adds these tests where it
finds one.
"""

import shutil

import pytest

from tests.integration.conftest import embedmill, write_shard

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# Elements that reach beyond the page and are not in a region that scrolls by itself.
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.scroll, pre, .unseen, .skip'))
    .map(e => [e.getBoundingClientRect(), e])
    .filter(([box]) => box.width && (box.right > innerWidth + 0.5 || box.left < -0.5))
    .map(([box, e]) => `${e.tagName} ${e.textContent.trim().slice(0, 40)} to ${box.right}`)"""
# Boxes side by side, and labels of a plot, that lie on each other.
OVERLAPPING = """() => {
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
        a.top < b.bottom - 1 && b.top < a.bottom - 1;
    const groups = [...document.querySelectorAll('main, section, .charts, .tiles, .lists, .figures')]
        .map(parent => [...parent.children])
        .concat([...document.querySelectorAll('svg')].map(s => [...s.querySelectorAll('text')]));
    const found = [];
    for (const group of groups) {
        const boxes = group.filter(e => !e.matches('.unseen'))
            .map(e => [e.getBoundingClientRect(), e.textContent.trim().slice(0, 40)]);
        boxes.forEach(([a, name], i) => boxes.slice(i + 1).forEach(
            ([b, other]) => { if (meet(a, b)) found.push(`${name} / ${other}`); }));
    }
    return found;
}"""
# Texts of a plot that leave it, and cells of a tile that are cut.
CUT = """() => [...document.querySelectorAll('figure')].flatMap(figure => {
        const outer = figure.getBoundingClientRect();
        return [...figure.querySelectorAll('svg text')].filter(text => {
            const box = text.getBoundingClientRect();
            return box.left < outer.left || box.right > outer.right;
        }).map(text => text.textContent);
    }).concat([...document.querySelectorAll('.key, .note, dd, h1, .scroll')]
        .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent))"""


@pytest.fixture(scope="module")
def page_url(tmp_path_factory, checkpoint, photos):
    """The report of a run with rejects, in which keys would be markup."""
    import yaml

    folder = tmp_path_factory.mktemp("report")
    members = {f"<b>{name}": data for name, data in photos.items()}
    cut = photos["falcon.jpg"][:30_000]
    members |= {
        "<script>alert(1)</script>.jpg": b"no image",
        "cut.jpg": cut,
        f"{'k' * 90}.jpg": b"",
    }
    write_shard(folder / "shards" / "a.tar", members)
    write_shard(folder / "shards" / "b.tar", photos)
    config = {
        "input": {"shards": f"{folder}/shards/*.tar"},
        "output": {"path": f"{folder}/out"},
        "model": {"checkpoint": str(checkpoint)},
        "workers": {"encoders": {"num_gpus": 0}, "preprocessors": {"max": 1}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    for command in (["run", folder / "run.yaml"], ["report", folder / "out"]):
        options = ["--html", folder / "report.html"] if command[0] == "report" else []
        done = embedmill(*command, *options)
        assert done.returncode == 0, done.stderr
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "install Debian's package chromium"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, page_url):
    """A function that opens the report; the page's `heard` is all that it said or asked for."""
    pages = []

    def open_page(width=1400, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        page.heard = []
        page.on("console", lambda message: page.heard.append(message.text))
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on("dialog", lambda dialog: page.heard.append(dialog.message))
        page.on("request", lambda request: page.heard.append(request.url))
        page.goto(page_url)
        return page

    yield open_page
    for page in pages:
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("numbers", ["closed", "open"])
def test_the_page_fits_and_nothing_overlaps(open_page, page_url, width, scheme, numbers):
    page = open_page(width, scheme)
    if numbers == "open":
        page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate(CUT) == []
    assert [text for text in page.heard if text != page_url and not text.startswith("data:")] == []


def test_all_figures_and_pictures_are_drawn(open_page):
    page = open_page()
    titles = page.locator("figure h3").all_inner_texts()
    assert len(titles) == len(set(titles)) == 11
    for figure in page.locator("figure").all():
        assert figure.locator("svg").bounding_box()["height"] > 100
        assert figure.locator("figcaption").inner_text()
        assert figure.get_by_role("img").count() == 1
    widths = page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth)")
    assert len(widths) > 20
    assert all(widths)
    assert page.locator("img:not([alt])").count() == 0


def test_light_and_dark_are_two_looks(open_page):
    look = """() => ['body', 'figure', 'svg text'].map(
        q => getComputedStyle(document.querySelector(q))).map(s => [s.backgroundColor, s.fill])"""
    light, dark = (open_page(scheme=scheme).evaluate(look) for scheme in ("light", "dark"))
    assert all(a != b for a, b in zip(light, dark, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_accessibility_checker_has_nothing_to_say(open_page, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_the_keyboard_reaches_the_report_first(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the report"
    assert page.locator(":focus").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.locator(":focus").get_attribute("id") == "main"


def test_it_prints_on_paper(open_page):
    page = open_page(700)
    page.emulate_media(media="print")
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(OVERLAPPING) == []
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert 3 <= pdf.count(b"/Type /Page\n") <= 20
