"""The mouse on the film of a page, in film pixels."""

from typing import Literal

from playwright.sync_api import Page

Place = tuple[float, float]


def on_screen(page: Page, x: float, y: float) -> Place:
    """Where a point of the film is."""
    film = page.locator("#film")
    place = film.bounding_box()
    assert place is not None
    left, top, scale = (float(film.get_attribute(f"data-{k}") or 0) for k in ("x", "y", "scale"))
    return place["x"] + left + scale * x, place["y"] + top + scale * y


def drag(
    page: Page, start: Place, by: Place, button: Literal["left", "middle", "right"] = "left"
) -> None:
    """Drag from a point of the film by a distance."""
    x0, y0 = on_screen(page, *start)
    x1, y1 = on_screen(page, start[0] + by[0], start[1] + by[1])
    page.mouse.move(x0, y0)
    page.mouse.down(button=button)
    for share in (0.4, 1.0):
        page.mouse.move(x0 + share * (x1 - x0), y0 + share * (y1 - y0))
    page.mouse.up(button=button)
