"""The review page as a user has it: cards, keys, and a knee on its film."""

import json
import re

from playwright.sync_api import Page, expect


def shown(page: Page) -> list[str]:
    """The rows in the order in which they are shown."""
    cards = page.locator(".card[data-row]")
    expect(cards).to_have_count(8)
    rows: list[str] = cards.evaluate_all(
        "cards => cards.sort((a, b) => a.offsetTop - b.offsetTop || a.offsetLeft - b.offsetLeft)"
        ".map(card => card.dataset.row)"
    )
    return rows


def press(page: Page, key: str, answer: str = "api/decide") -> None:
    """Press a key and wait for the server's answer."""
    with page.expect_response(lambda response: answer in response.url and response.ok):
        page.keyboard.press(key)


def edit(page: Page) -> None:
    page.keyboard.press("Enter")
    page.wait_for_selector("#editor[data-ready]")


def click(page: Page, button: str, answer: str = "api/decide") -> None:
    """Press a button and wait for the server's answer."""
    with page.expect_response(lambda response: answer in response.url and response.ok):
        page.locator(button).click()


def by_film(page: Page) -> Page:
    """Sort the knees as in the table, two per film, and select the first."""
    page.locator("[name=sort]").select_option("film")
    expect(page.locator("#gallery")).to_have_attribute("aria-busy", "false")
    page.locator("#gallery").focus()
    return page


def open_knee(page: Page, number: int) -> None:
    """Open a knee, counted from 1 as in the table."""
    by_film(page)
    for key in ("Home", *["ArrowRight"] * (number - 1), "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(f"#editor[data-ready='{number}']")


def assert_refused(page: Page, method: str, path: str, content: object) -> None:
    """Send what the page would not send; the answer is one line."""
    headers = {"Content-Type": "application/json", "Origin": page.evaluate("location.origin")}
    body = None if content is None else json.dumps(content)
    fetch = page.context.request.fetch
    answer = fetch(f"{page.url}{path}", method=method, data=body, headers=headers)
    assert answer.status == 422, (path, content)
    assert not re.search(r"\n|\\n", answer.text()), (path, content)
