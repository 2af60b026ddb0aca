"""The page, used by hand in a real browser without a screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from .conftest import Server, wait_for

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")


def test_pages_load_nothing_from_elsewhere(http: httpx2.Client) -> None:
    for path in ("/", "/docs"):
        response = http.get(path)
        assert response.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", response.text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by Selenium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not CHROMIUM or not DRIVER:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(DRIVER)) as driver:
        yield driver


def find(browser: Any, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", selector)
    return found


def type_into(element: Any, text: str) -> None:
    element.clear()
    element.send_keys(text)


def test_a_person_asks_and_sees_bars(browser: Any, server: Server, http: httpx2.Client) -> None:
    browser.get(server.url)
    wait_for(lambda: "ready" in find(browser, "#model")[0].text)
    type_into(find(browser, "#state")[0], "The invoice is wrong. <script>alert(1)</script>")
    choice, score, noul = find(browser, "fieldset")
    type_into(choice.find_element("css selector", ".options textarea"), "billing: invoices\n<b>bugs</b>")
    score.find_element("css selector", ".remove").click()
    type_into(noul.find_element("css selector", ".text"), "Is it about money?")
    find(browser, "#add")[0].click()
    added = find(browser, "fieldset")[-1]
    added.find_element("css selector", ".type [value=score]").click()
    type_into(added.find_element("css selector", ".options textarea"), "calm\nangry")
    find(browser, "#ask")[0].click()
    wait_for(lambda: len(find(browser, ".answer")) == 3)
    asked = {
        "state": "The invoice is wrong. <script>alert(1)</script>",
        "questions": {
            "a": {
                "type": "choice",
                "instructions": "Which team?",
                "criteria": {"billing": "invoices", "<b>bugs</b>": None},
            },
            "b": {"type": "noul", "instructions": "Is it about money?"},
            "c": {"type": "score", "criteria": ["calm", "angry"]},
        },
    }
    answers = http.post("/v1/systemone", json=asked).json()["answers"]
    shares = [*answers["a"]["probabilities"].values(), answers["b"]["noul"], 1 - answers["b"]["noul"]]
    shares += answers["c"]["probabilities"].values()
    bars = find(browser, ".answer meter")
    assert [float(bar.get_attribute("value")) for bar in bars] == shares
    assert [bar.get_attribute("aria-label") for bar in bars] == ["billing", "<b>bugs</b>", "yes", "no", "0", "1"]
    assert "1: angry" in find(browser, ".answer")[2].text
    assert browser.get_log("browser") == []


def test_an_error_is_shown(browser: Any, server: Server) -> None:
    browser.get(server.url)
    type_into(find(browser, "fieldset .options textarea")[0], "")
    find(browser, "#ask")[0].click()
    wait_for(lambda: "criteria" in find(browser, "#error")[0].text)
    assert find(browser, ".answer") == []
    assert "422" in browser.get_log("browser")[0]["message"]


def test_the_docs_show_every_route(browser: Any, server: Server, http: httpx2.Client) -> None:
    browser.get(f"{server.url}/docs")
    paths = http.get("/openapi.json").json()["paths"]
    wait_for(lambda: len(find(browser, "h2")) == sum(map(len, paths.values())))
    assert browser.get_log("browser") == []
