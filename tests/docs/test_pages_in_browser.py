"""The built pages in a headless Chromium: what is in sight, what is cut, and the gallery at work."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.deployment import check_shared
from tests.docs.test_gallery_worlds import ROBOTS, TOLD, compare
from tools import browser, gallery

ROOT = Path(__file__).resolve().parents[2]
WANTED = ("chromium", "npm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, WANTED)), reason=f"needs {' and '.join(WANTED)}"),
]
BOXES = """
const frame = document.getElementById("page"), there = () => frame.contentDocument?.querySelector("article");
while (!there() || frame.contentDocument.readyState !== "complete") await new Promise((done) => setTimeout(done, 50));
await new Promise((done) => setTimeout(done, 300));
const inside = frame.contentWindow, { innerWidth, innerHeight } = inside;
const box = (one) => one.getBoundingClientRect();
const cut = [...inside.document.querySelectorAll("article *")]
  .filter((one) => !one.closest("pre, svg") && box(one).right > innerWidth + 0.5)
  .map((one) => `${one.tagName} ${one.textContent.slice(0, 40)}`);
const rows = [...inside.document.querySelectorAll("tbody tr")].map(box);
return {
  cut: cut.slice(0, 5),
  scrolls: inside.document.documentElement.scrollWidth > innerWidth,
  highest: Math.max(0, ...rows.map((row) => row.height)),
  seen: rows.filter((row) => row.height > 0 && row.bottom <= innerHeight).length,
};"""
SHOWN = """
const frame = document.getElementById("page"), place = () => frame.contentDocument?.getElementById("stage");
while (!(Number(place()?.dataset.frames) > 0)) await new Promise((done) => setTimeout(done, 20));
return { ms: frame.contentWindow.performance.now(), name: place().dataset.shown, text: place().innerText,
  heading: frame.contentDocument.querySelector("h1").firstChild.textContent };"""
CHOSEN = """
const frame = document.getElementById("page"), place = () => frame.contentDocument?.getElementById("stage");
const wait = (ms) => new Promise((done) => setTimeout(done, ms)), frames = {};
while (!(Number(place()?.dataset.frames) > 0)) await wait(20);
const select = place().querySelector("select");
for (const [index, { value }] of [...select.options].entries()) {
  select.selectedIndex = index;
  select.dispatchEvent(new frame.contentWindow.Event("change"));
  while (place().dataset.shown !== value) await wait(20);
  const canvas = place().querySelector("canvas"), box = canvas.getBoundingClientRect();
  const middle = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 };
  canvas.dispatchEvent(new frame.contentWindow.MouseEvent("click", middle)); // in games for two, a move
  while (Number(place().dataset.frames) < 2) await wait(20);
  frames[value] = Number(place().dataset.frames);
}
return frames;"""
OUTSIDE = """
const frame = document.getElementById("page"), place = () => frame.contentDocument?.getElementById("stage");
while (!(Number(place()?.dataset.frames) > 0)) await new Promise((done) => setTimeout(done, 20));
return frame.contentWindow.performance.getEntriesByType("resource").map((one) => one.name)
  .filter((name) => !name.startsWith(location.origin));"""


PAGES = ("", "words/", "gallery/", "gallery_table/", "algorithms/", "algorithms/learning/")
SOURCES = ("index.md", "words.md", "gallery.md", "gallery_table.md", "algorithms/index.md", "algorithms/learning.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Those pages as `make docs` makes them, and what the gallery needs; links to others lead nowhere."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "docs/assets", folder / "docs/assets")
    for source in SOURCES:
        (folder / "docs" / source).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "docs" / source, folder / "docs" / source)
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    before, after = config.partition("nav:\n")[0], config.partition("plugins:\n")[2]
    nav = "nav:\n" + "".join(f"  - {source}\n" for source in SOURCES)
    (folder / "mkdocs.yml").write_text(f"{before}{nav}plugins:\n{after}", encoding="utf-8")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean"]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    gallery.build(folder / "site")
    return folder / "site"


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_cut_on_a_phone(site, page):
    found = browser.ask(site, BOXES, body=browser.framed(f"/{page}index.html", 390), width=500)
    assert (found["cut"], found["scrolls"]) == ([], False)


@pytest.mark.parametrize("page", ["algorithms/learning/", "algorithms/", "words/"])
def test_ten_rows_are_in_sight_on_a_desk(site, page):
    found = browser.ask(site, BOXES, body=browser.framed(f"/{page}index.html", 1440), width=1440)
    assert found["cut"] == []
    assert found["seen"] >= 10
    assert found["highest"] <= (60 if "learning" in page else 90)


def test_rows_of_results_are_low_on_a_phone_too(site):
    found = browser.ask(site, BOXES, body=browser.framed("/algorithms/learning/index.html", 390), width=500)
    assert found["highest"] <= 60


def test_the_gallery_is_there_in_five_seconds_and_fetches_nothing_from_elsewhere(site):
    body = browser.framed("/gallery/index.html", 1280)
    found = min((browser.ask(site, SHOWN, body=body) for _ in range(3)), key=lambda one: one["ms"])
    assert found["ms"] < 5000
    assert (found["name"], found["heading"]) == ("ppo/CartPole-v1", "Gallery")
    facts = check_shared(gallery.ZOO / found["name"])
    assert all(
        text in found["text"] for text in (facts["command"], facts["revision"], *facts["weights_sha256"].values())
    )
    assert browser.ask(site, OUTSIDE, body=body) == []


def test_every_policy_can_be_chosen_and_games_answer_a_click(site):
    found = browser.ask(site, CHOSEN, body=browser.framed("/gallery/index.html", 1280))
    assert list(found) == [entry.name for entry in gallery.ENTRIES if (gallery.ZOO / entry.name).is_dir()]
    assert found["ppo/connect_four_v3"] == found["ppo/tictactoe-v3"] == 2


def test_robots_move_in_the_browser_as_in_python(site):
    """MuJoCo's package for browsers and Python's, of another version, on the same starts and actions."""

    def ask(cases):
        begin = f'const folder = "/{gallery.PLACE}/worlds", cases = {json.dumps(cases)}; {TOLD}'
        return browser.ask(site, f"{begin} return Promise.all(cases.map(told));")

    steps = compare(ROBOTS, ask)
    assert min(steps.values()) >= 100, steps


def test_every_policy_of_the_gallery_plays_in_the_browser_as_its_receipt_says(site):
    """500 steps or more; the means differ by no more than 3.3 standard errors: one in a thousand by chance."""
    entries = [entry for entry in gallery.ENTRIES if (gallery.ZOO / entry.name).is_dir()]
    assert len(entries) >= 12
    brief = [entry for entry in entries if entry.world in ("catch", "recall", "connect_four", "tictactoe")]
    all_found = gallery.in_browser(site, entries) | gallery.in_browser(site, brief, episodes=100)
    for name, found in all_found.items():
        assert sum(found["lengths"]) >= 500, name
        evaluation, (mean, half) = check_shared(gallery.ZOO / name)["evaluation"], gallery.interval(found["returns"])
        if "elo_ci95" in evaluation:
            assert mean - half > 0, f"{name} does not win against random moves"
            continue
        low, high = evaluation["return_ci95"]
        most = 3.3 / 1.96 * (half**2 + ((high - low) / 2) ** 2) ** 0.5
        assert abs(mean - evaluation["return_mean"]) <= most + 1e-6, name
