"""Legs and hardware to draw knees with metal and growth plates from, and drawings of hardware.

All maps show [-1.6, 1.6] x [-2.5, 2.5] plateau widths around the joint, lateral on the left.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kneematch.models.locator import VIEW_SIZE
from kneematch.sampling import resize_part
from kneephantoms import plan_film, render
from kneephantoms.leg import render_leg

PX: Final = 100  # pixels per plateau width, as in a view
SIZE: Final = (500, 320)
CORNER: Final = (-1.6, -2.5)
FINER: Final = 3  # hardware is drawn this many times larger and then reduced
WORDS: Final = ("R", "L", "AP", "LAT", "KNEE", "WT-BEARING", "STANDING", "12:45", "R KNEE", "L-UPR")
FIRST_SEED: Final = 70_000_000  # disjoint from those of any test

Rng = np.random.Generator
Point = tuple[float, float]  # (u, v) in plateau widths, as in kneephantoms.anatomy
Map = NDArray[np.generic]


def render_bones(seed: int) -> tuple[Map, Map]:
    """Return the attenuation of an adult's soft tissue and bones, each (500, 320)."""
    plan = plan_film(FIRST_SEED + seed)
    legs = tuple(
        replace(
            leg,
            implant="",
            place=replace(leg.place, plateau_px=float(PX)),
            shape=replace(leg.shape, growth_plates=0.0),
        )
        for leg in plan.legs
    )
    soft, both = (
        render_leg(SIZE, CORNER, replace(plan, legs=legs, exposure=exposure), 0)
        for exposure in (replace(plan.exposure, bone_contrast=contrast) for contrast in (0.0, 1.0))
    )
    return soft.astype(np.float16), (both - soft).astype(np.float16)


def render_other(seed: int) -> Map:
    """Return a view (400, 250) of another part of the body."""
    rng = np.random.default_rng([seed, 37])
    film = torch.from_numpy(render(plan_film(FIRST_SEED + seed, "other")))
    height, width = film.shape
    across = rng.uniform(0.2, 0.6) * min(height / 1.6, width)
    left, top = rng.uniform(0, width - across), rng.uniform(0, height - 1.6 * across)
    part = resize_part(
        film, (int(top), int(top + 1.6 * across)), (int(left), int(left + across)), VIEW_SIZE
    )
    return (part * 255).byte().numpy()


def draw_hardware(seed: int) -> Map:
    """Return a mask (500, 320) of random hardware."""
    return Hardware(seed).drawn()


def draw_beside(seed: int) -> Map:
    """Return a mask (500, 320) of random things beside the bones."""
    return Hardware(seed).beside()


class Hardware:
    """Draws random hardware as a mask: 255 where there is metal."""

    def __init__(self, seed: int) -> None:
        self.rng: Rng = np.random.default_rng([seed, 31])
        self.picture = Image.new("L", (FINER * SIZE[1], FINER * SIZE[0]))
        self.draw = ImageDraw.Draw(self.picture)
        self.side = 1.0 if self.rng.random() < 0.5 else -1.0

    def beside(self) -> Map:
        """Return the mask (500, 320) of markers, words, rulers and balls beside the bones."""
        for _ in range(self.rng.integers(1, 4)):
            side = 1.0 if self.rng.random() < 0.5 else -1.0
            u, v, kind = side * self.uniform(0.72, 1.5), self.uniform(-2, 2), self.rng.random()
            if kind < 0.4:
                words = str(self.rng.choice(WORDS))
                size, (x, y) = FINER * PX * self.uniform(0.08, 0.35), self.pixel(u, v)
                font = ImageFont.load_default(size)
                box = self.draw.textbbox((x, y), words, font, "mm")
                if self.rng.random() < 0.4:
                    self.draw.rectangle(box, fill=255)
                    self.draw.text((x, y), words, 0, font, "mm")
                else:
                    self.draw.text((x, y), words, 255, font, "mm")
            elif kind < 0.6:
                self.line([(u, v), (u + 0.001, v)], self.uniform(0.05, 0.35))
            elif kind < 0.75:
                self.line([(u, -2.5), (u + self.uniform(-0.2, 0.2), 2.5)], self.uniform(0.02, 0.1))
                for at in np.arange(-2.5, 2.5, self.uniform(0.04, 0.15)).tolist():
                    self.line([(u, at), (u + side * self.uniform(0.05, 0.12), at)], 0.015)
            else:
                self.blob(u, v, self.uniform(0.03, 0.2), self.uniform(0.03, 0.2))
        return self.reduced()

    def reduced(self) -> Map:
        reduced = self.picture.resize((SIZE[1], SIZE[0]), Image.Resampling.BOX)
        return np.asarray(reduced).copy()

    def drawn(self) -> Map:
        """Return the mask (500, 320) of one or two pieces of random kinds."""
        kinds: Sequence[Callable[[], None]] = (
            *(self.total, self.total, self.partial, self.patellofemoral, self.plate, self.plate),
            *(self.nail, self.nail, self.screws, self.staples, self.wires, self.tension_band),
            *(self.fixator, self.megaprosthesis, self.anything),
        )
        for _ in range(1 if self.rng.random() < 0.85 else 2):
            kinds[self.rng.integers(len(kinds))]()
        return self.reduced()

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def line(self, points: Sequence[Point], width: float, grey: int = 255) -> None:
        """Draw a polyline of a width, with round ends."""
        places = [self.pixel(*point) for point in points]
        thick = max(round(FINER * PX * width), 2)
        self.draw.line(places, fill=grey, width=thick, joint="curve")
        for x, y in (places[0], places[-1]):
            self.draw.ellipse([x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2], grey)

    def shape(self, points: Sequence[Point]) -> None:
        """Draw a polygon whose corners are rounded by a closed spline."""
        corners = np.array(points)
        for _ in range(3 if self.rng.random() < 0.8 else 0):  # Chaikin's corner cutting
            after = np.roll(corners, -1, 0)
            corners = np.stack([0.8 * corners + 0.2 * after, 0.2 * corners + 0.8 * after], 1)
            corners = corners.reshape(-1, 2)
        self.draw.polygon([self.pixel(u, v) for u, v in corners.tolist()], fill=255)

    def pixel(self, u: float, v: float) -> Point:
        return FINER * PX * (u - CORNER[0]), FINER * PX * (v - CORNER[1])

    def blob(self, u: float, v: float, across: float, down: float) -> None:
        """Draw an irregular convex piece."""
        angles = np.sort(self.rng.uniform(0, 2 * np.pi, self.rng.integers(5, 10)))
        reach = self.rng.uniform(0.8, 1.2, len(angles))
        x, y = u + across * reach * np.cos(angles), v + down * reach * np.sin(angles)
        self.shape(list(zip(x.tolist(), y.tolist(), strict=True)))

    def screw(self, start: Point, end: Point, width: float) -> None:
        """Draw a screw, threaded and with a head, or plain."""
        self.line([start, end], width)
        along = np.subtract(end, start)
        length = float(np.hypot(*along))
        if self.rng.random() < 0.6 and length > 0.1:
            across = np.array([-along[1], along[0]]) / length * width * self.uniform(0.7, 1.0)
            first = self.uniform(0, 0.6)
            for share in np.arange(first, 1, self.uniform(0.025, 0.05) / length):
                middle = np.add(start, share * along)
                self.line([tuple(middle - across), tuple(middle + across)], width * 0.4)
        if self.rng.random() < 0.5:
            head = np.add(start, along / length * 0.02)
            self.line([start, tuple(head)], width * self.uniform(1.3, 2.2))

    def stem(self, v0: float, v1: float, widths: Point) -> None:
        """Draw a tapered rod along the shaft."""
        lean = self.uniform(-0.05, 0.05)
        (a, b), tip = widths, (v1 - v0) * 0.03
        self.shape(
            [
                (-a, v0),
                (a, v0),
                (lean + b, v1 - tip),
                (lean, v1),
                (lean - b, v1 - tip),
            ]
        )

    def total(self) -> None:
        """Draw a total replacement, or its femoral or tibial component alone."""
        wide, part = self.uniform(0.4, 0.5), self.rng.random()
        if part < 0.9:
            self.femoral(wide)
        if part > 0.1:
            self.tibial(wide)
        if self.rng.random() < 0.15:  # a hinge or a post between both
            half = self.uniform(0.05, 0.3)
            self.shape([(-half, -0.3), (half, -0.3), (half, 0.05), (-half, 0.05)])

    def femoral(self, wide: float) -> None:
        top, low = self.uniform(-0.6, -0.3), self.uniform(-0.12, -0.02)
        apex, notch = self.uniform(-0.2, 0.2), self.uniform(0.05, 0.2)
        if self.rng.random() < 0.7:
            self.shape(
                [
                    (-wide, low - 0.22),
                    (-0.6 * wide + apex, top),
                    (0.5 * wide + apex, top),
                    (wide, low - 0.22),
                    (wide - 0.03, low),
                    (0.2, low + 0.01),
                    (0.0, low - notch),
                    (-0.2, low + 0.01),
                    (-wide + 0.03, low),
                ]
            )
        else:  # two runners
            for u in (-0.65 * wide, 0.65 * wide):
                half, top = self.uniform(0.12, 0.2), self.uniform(-0.5, -0.25)
                self.shape([(u - half, top), (u + half, top), (u + half, low), (u - half, low)])
        if self.rng.random() < 0.3:
            self.stem(top + 0.15, -self.uniform(0.7, 2.4), (self.uniform(0.06, 0.14), 0.07))

    def tibial(self, wide: float) -> None:
        tray, thick = self.uniform(0.0, 0.1), self.uniform(0.03, 0.08)
        self.line([(-wide, tray), (wide, tray + self.uniform(-0.04, 0.04))], thick)
        kind, end = self.rng.random(), tray + self.uniform(0.25, 0.7)
        if kind < 0.7:
            self.stem(tray, end, (self.uniform(0.06, 0.3), self.uniform(0.04, 0.09)))
        elif kind < 0.85:
            for u in (-0.25, 0.25, *(self.rng.uniform(-0.3, 0.3, 2).tolist())):
                self.screw(
                    (u, tray), (u + self.uniform(-0.08, 0.08), end), self.uniform(0.03, 0.07)
                )
        if self.rng.random() < 0.3:
            self.stem(tray, self.uniform(0.8, 2.4), (self.uniform(0.06, 0.12), 0.06))

    def partial(self) -> None:
        side, tray = self.side, self.uniform(0.0, 0.09)
        inner, outer, top = (
            self.uniform(0.12, 0.22),
            self.uniform(0.38, 0.5),
            self.uniform(-0.5, -0.3),
        )
        low = self.uniform(-0.1, -0.03)
        self.shape(
            [
                (side * (inner + 0.05), top),
                (side * (outer - 0.08), top),
                (side * outer, low - 0.1),
                (side * (outer - 0.03), low),
                (side * inner, low),
            ]
        )
        if self.rng.random() < 0.85:
            self.line([(side * 0.15, tray), (side * outer, tray)], self.uniform(0.03, 0.07))
            self.line([(side * 0.3, tray), (side * 0.3, tray + self.uniform(0.05, 0.2))], 0.05)

    def patellofemoral(self) -> None:
        place = self.uniform(-0.12, 0.12), self.uniform(-0.6, -0.25)
        self.blob(*place, self.uniform(0.13, 0.28), self.uniform(0.13, 0.28))

    def plate(self) -> None:
        side, down = self.side, 1.0 if self.rng.random() < 0.6 else -1.0
        start, length = down * self.uniform(0.02, 0.2), self.uniform(0.6, 2.4)
        width, away = self.uniform(0.03, 0.09), self.uniform(-0.06, 0.06)
        knots = [(0.5, 0.0), (0.46, 0.2), (0.31, 0.45), (0.25, 0.85), (0.22, 2.4)]
        line = [(side * (u + away), start + down * v) for u, v in knots if v <= length]
        self.line(line, width)
        for share in self.rng.uniform(0.0, 1.0, self.rng.integers(2, 9)):
            v = float(share) * min(length, 1.6)
            u = float(np.interp(v, [k[1] for k in knots], [k[0] for k in knots])) + away
            far = u - self.uniform(0.35, 0.9) * (1.0 if v < 0.3 else 0.6)
            at = start + down * v
            self.screw(
                (side * u, at),
                (side * far, at + self.uniform(-0.1, 0.1)),
                self.uniform(0.025, 0.06),
            )
            if self.rng.random() < 0.3:  # an empty hole beside it
                self.line([(side * u, at + 0.08), (side * u, at + 0.081)], 0.5 * width, 0)

    def nail(self) -> None:
        down = 1.0 if self.rng.random() < 0.6 else -1.0
        start, width = down * self.uniform(0.0, 0.4), self.uniform(0.08, 0.16)
        u, lean = self.uniform(-0.08, 0.08), self.uniform(-0.12, 0.12)
        self.line([(u, start), (u + lean, start + down * 2.6)], width)
        for v in start + down * self.rng.uniform(0.08, 0.7, self.rng.integers(0, 4)):
            self.screw(
                (-0.35, float(v)),
                (self.uniform(0.1, 0.38), float(v) + self.uniform(-0.1, 0.1)),
                self.uniform(0.03, 0.06),
            )

    def screws(self) -> None:
        for _ in range(self.rng.integers(1, 5)):
            u, v = self.uniform(-0.4, 0.4), self.uniform(-0.6, 0.7)
            angle, length = self.uniform(0, 2 * np.pi), self.uniform(0.12, 0.8)
            end = u + length * np.cos(angle) * 0.8, v + length * np.sin(angle)
            self.screw(
                (u, v), (float(np.clip(end[0], -0.45, 0.45)), end[1]), self.uniform(0.03, 0.1)
            )

    def staples(self) -> None:
        for _ in range(self.rng.integers(1, 4)):
            u, v = self.side * self.uniform(0.1, 0.5), self.uniform(-0.5, 0.6)
            angle, deep, gap = (
                self.uniform(-0.5, 0.5),
                self.uniform(0.1, 0.3),
                self.uniform(0.08, 0.25),
            )
            back = np.array(
                [[u - self.side * deep, v], [u, v], [u, v + gap], [u - self.side * deep, v + gap]]
            )
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            moved = (back - [u, v]) @ turn.T + [u, v]
            self.line([tuple(p) for p in moved.tolist()], self.uniform(0.02, 0.05))

    def loop(self, u: float, v: float, across: float, down: float, width: float) -> None:
        angles = np.linspace(0, 2 * np.pi * self.uniform(0.7, 1.0), 40) + self.uniform(0, 6)
        x = u + across * np.cos(angles) + 0.01 * np.cumsum(self.rng.normal(0, 0.3, 40))
        y = v + down * np.sin(angles)
        self.line(list(zip(x.tolist(), y.tolist(), strict=True)), width)

    def wires(self) -> None:
        """Draw cerclage wires around a shaft, or wires into the bone."""
        width, down = self.uniform(0.012, 0.03), 1.0 if self.rng.random() < 0.5 else -1.0
        if self.rng.random() < 0.5:
            for v in self.rng.uniform(0.3, 1.3, self.rng.integers(1, 5)):
                self.loop(
                    0.0, down * float(v), self.uniform(0.2, 0.35), self.uniform(0.01, 0.06), width
                )
        else:
            for _ in range(self.rng.integers(1, 4)):
                u, v = self.uniform(-0.5, 0.5), self.uniform(-0.7, 0.8)
                self.line([(u, v), (-u * self.uniform(0, 1), v + self.uniform(-0.8, 0.8))], width)

    def tension_band(self) -> None:
        """Draw wires around the patella, and mostly two pins through it."""
        u, v, width = (
            self.uniform(-0.12, 0.06),
            self.uniform(-0.75, -0.4),
            self.uniform(0.012, 0.03),
        )
        self.loop(u, v, self.uniform(0.1, 0.25), self.uniform(0.15, 0.3), width)
        if self.rng.random() < 0.7:
            for off in (-0.07, 0.07):
                tilt = self.uniform(-0.04, 0.04)
                self.line(
                    [(u + off, v - 0.3), (u + off + tilt, v + 0.3)], self.uniform(0.015, 0.035)
                )

    def fixator(self) -> None:
        """Draw pins through a bone, clamps and a rod beside the leg."""
        side, down, away = (
            self.side,
            1.0 if self.rng.random() < 0.6 else -1.0,
            self.uniform(0.7, 1.3),
        )
        lean = self.uniform(-0.2, 0.2)
        for v in down * self.rng.uniform(0.15, 1.6, self.rng.integers(1, 5)):
            end = side * away * self.uniform(1.0, 1.3)
            self.line([(-side * 0.35, float(v)), (end, float(v) + lean)], self.uniform(0.03, 0.06))
            self.blob(side * away, float(v) + 0.8 * lean, 0.08, 0.08)
        self.line([(side * away, down * 0.1), (side * away, down * 2.5)], self.uniform(0.06, 0.12))

    def megaprosthesis(self) -> None:
        """Replace a whole end of a bone."""
        down, half, end = (
            1.0 if self.rng.random() < 0.4 else -1.0,
            self.uniform(0.1, 0.2),
            self.uniform(1, 2.5),
        )
        self.shape(
            [
                (-0.42, 0.06 * down),
                (0.42, 0.06 * down),
                (0.38, 0.35 * down),
                (half, 0.55 * down),
                (half, end * down),
                (-half, end * down),
                (-half, 0.55 * down),
                (-0.38, 0.35 * down),
            ]
        )
        if self.rng.random() < 0.7:
            self.tibial(0.42) if down < 0 else self.femoral(0.42)

    def anything(self) -> None:
        for _ in range(self.rng.integers(1, 4)):
            place = self.uniform(-0.4, 0.4), self.uniform(-0.8, 0.9)
            self.blob(*place, self.uniform(0.05, 0.3), self.uniform(0.05, 0.3))
