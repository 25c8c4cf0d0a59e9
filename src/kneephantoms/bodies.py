"""Other parts of the body, put together from rods: what is not a frontal knee.

Bodies are drawn in units of an average tibial plateau (79 mm), upright, around the origin; x grows
to the right and y downwards. They only need to be like bones, since they teach what a knee is not.
"""

from typing import Final

import numpy as np

from kneephantoms.anatomy import Point, Rng
from kneephantoms.solids import Points, Rod, chain

Rods = list[Rod]


def _polar(start: Point, angle: float, length: float) -> Point:
    """Return the point at a distance; the angle is clockwise from straight down, in radians."""
    return start[0] - length * float(np.sin(angle)), start[1] + length * float(np.cos(angle))


def _arc(centre: Point, radii: Point, start: float, end: float, count: int) -> Points:
    return [
        (float(centre[0] + radii[0] * np.cos(a)), float(centre[1] + radii[1] * np.sin(a)))
        for a in np.linspace(start, end, count)
    ]


def _soft(start: Point, end: Point, radius: Point, depth: float = 1.0) -> Rod:
    return Rod(start, end, radius, material="soft", depth=depth)


def _spongy(start: Point, end: Point, radius: Point, wall: float, depth: float = 1.0) -> Rod:
    return Rod(start, end, radius, wall=wall, material="spongy", depth=depth)


def lateral_knee(rng: Rng) -> Rods:
    """Return a knee from the side, with the patella in front, to the left."""
    flexion = float(np.radians(rng.choice([rng.uniform(0, 30), rng.uniform(30, 110)])))
    knee = (0.0, -0.3)
    hip = _polar(knee, np.pi - 0.3 * flexion, 5.0)
    shin = 0.7 * flexion
    top = _polar(knee, shin, 0.38)
    ankle = _polar(top, shin, 5.0)
    back = _polar(top, shin - np.pi / 2, 0.12)
    thigh = _polar(knee, np.pi - 0.3 * flexion, 0.5)
    calf = _polar(top, shin - 0.06, 1.6)
    patella = _polar(knee, np.pi / 2 - 0.15 * flexion, rng.uniform(0.42, 0.5))
    patella = (patella[0], patella[1] + 0.15 - 0.1 * flexion)
    lean = 0.1 + 0.35 * flexion
    fibula = _polar(_polar(top, shin, 0.3), shin - np.pi / 2, 0.25)
    return [
        _soft(hip, thigh, (1.15, 0.7)),
        _soft(thigh, top, (0.62, 0.62)),
        _soft(top, calf, (0.55, 0.7)),
        _soft(calf, ankle, (0.68, 0.4)),
        Rod(hip, _polar(knee, np.pi - 0.3 * flexion, 0.25), (0.22, 0.3), 0.8, 0.4),
        _spongy(knee, _polar(knee, shin - 1.2, 0.18), (0.36, 0.3), 0.05),
        _spongy(knee, _polar(knee, shin - 0.9, 0.12), (0.30, 0.33), 0.05),
        _spongy(top, back, (0.3, 0.22), 0.07, 0.8),
        Rod(_polar(top, shin, 0.05), ankle, (0.32, 0.2), 0.62, 0.35),
        Rod(fibula, _polar(fibula, shin, 4.0), (0.13, 0.1), 0.8, 0.4),
        _spongy(
            _polar(patella, np.pi - lean, 0.17), _polar(patella, -lean, 0.2), (0.17, 0.1), 0.12
        ),
    ]


def _fingers(rng: Rng, root: float, spread: float, bones: Points, size: float) -> Rods:
    """Return five rays; each has bones of given (length, radius), from y = root downwards."""
    rods: Rods = []
    for k in range(5):
        at = (size * 0.2 * (k - 2), root + 0.04 * abs(k - 2))
        angle = -spread * (k - 2) + rng.normal(0, 0.04)
        for length, radius in bones[1:] if k == 0 else bones:
            end = _polar(at, angle, size * length * (0.75 if k in (0, 4) else 1))
            rods.append(Rod(at, end, (size * radius, 0.85 * size * radius), 0.7, 0.45))
            rods.append(_soft(at, end, (size * 0.14, size * 0.12)))
            at = _polar(end, angle, size * 0.035)
    return rods


def _pebbles(rng: Rng, centre: Point, reach: Point, count: int) -> Rods:
    """Return short round bones, as in the wrist and the hind foot."""
    rods: Rods = []
    for _ in range(count):
        x, y = (c + rng.uniform(-1, 1) * r for c, r in zip(centre, reach, strict=True))
        end = x + rng.normal(0, 0.05), y + rng.normal(0, 0.05)
        radius = rng.uniform(0.08, 0.16), rng.uniform(0.08, 0.16)
        rods.append(_spongy((x, y), end, radius, 0.15))
    return rods


def hand(rng: Rng) -> Rods:
    """Return forearm, wrist and fingers."""
    bones = ((0.65, 0.075), (0.42, 0.06), (0.27, 0.05), (0.2, 0.04))
    return [
        _soft((0.0, 0.3), (0.0, 0.8), (0.4, 0.45), 0.4),
        Rod((0.19, -3.0), (0.19, 0.0), (0.13, 0.2), 0.65, 0.4),
        Rod((-0.19, -3.0), (-0.19, 0.03), (0.17, 0.1), 0.7, 0.4),
        _soft((0.0, -3.0), (0.0, 0.0), (0.55, 0.33), 0.7),
        *_pebbles(rng, (0.0, 0.17), (0.28, 0.12), 8),
        *_fingers(rng, 0.35, rng.uniform(0.05, 0.25), bones, 1.0),
    ]


def foot(rng: Rng) -> Rods:
    """Return lower leg, ankle, hind foot and toes, from the front."""
    return [
        *_shank(rng, -0.2, 3.5),
        *_pebbles(rng, (0.0, 0.2), (0.3, 0.3), 7),
        _spongy((0.0, 0.1), (0.05, 0.5), (0.4, 0.3), 0.1),
        _soft((0.0, 0.0), (0.0, 1.2), (0.55, 0.6), 0.7),
        *_fingers(rng, 0.7, 0.06, ((0.85, 0.08), (0.33, 0.07), (0.2, 0.06)), 1.15),
    ]


def _shank(rng: Rng, end: float, length: float) -> Rods:
    """Return tibia and fibula down to the ankle at y = end."""
    side = float(rng.choice([-1, 1]))
    return [
        _soft((0.0, end - length), (0.0, end - length + 1.6), (0.45, 0.75)),
        _soft((0.0, end - length + 1.6), (0.0, end), (0.75, 0.42)),
        Rod((0.02, end - length), (0.0, end), (0.2, 0.28), 0.75, 0.4),
        Rod((side * 0.45, end - length), (side * 0.34, end + 0.15), (0.1, 0.14), 0.75, 0.4),
    ]


def ankle(rng: Rng) -> Rods:
    """Return both bones of the lower leg on the talus, from the front."""
    return [
        *_shank(rng, 0.0, 3.5),
        _spongy((-0.16, 0.28), (0.16, 0.28), (0.22, 0.22), 0.1),
        _spongy((-0.1, 0.65), (0.1, 0.65), (0.3, 0.3), 0.1),
        _soft((0.0, 0.1), (0.0, 0.8), (0.5, 0.5)),
    ]


def elbow(rng: Rng) -> Rods:
    """Return upper arm and forearm, straight or bent."""
    bend = float(rng.choice([0.0, rng.uniform(0.2, 1.6)])) + rng.normal(0, 0.1)
    one, two = _polar((0.13, 0.14), bend, 3.2), _polar((-0.16, 0.1), bend, 3.2)
    return [
        _soft((0.0, -3.5), (0.0, 0.0), (0.6, 0.45)),
        _soft((0.0, 0.0), _polar((0.0, 0.1), bend, 3.2), (0.5, 0.33)),
        Rod((0.0, -3.5), (0.0, -0.25), (0.18, 0.2), 0.75, 0.4),
        _spongy((-0.24, -0.12), (0.24, -0.12), (0.16, 0.14), 0.08),
        Rod((0.13, 0.14), one, (0.15, 0.12), 0.7, 0.4),
        Rod((-0.16, 0.1), two, (0.19, 0.1), 0.6, 0.4),
        _spongy((-0.08, -0.2), (-0.16, 0.15), (0.17, 0.17), 0.08, 0.6),
    ]


def hip_joint(sign: float, hip: Point, shaft: Point) -> Rods:
    """Return half a pelvis and the upper end of a femur whose shaft starts below the trochanters.

    `sign` is +1 where medial is to the right; the joint's centre is `hip`.
    """
    x, y = hip
    ilium = [(x + sign * 0.35, y - 0.3), (x - sign * 0.05, y - 1.0), (x + sign * 0.1, y - 1.7)]
    back = [(x + sign * 0.35, y - 0.3), (x + sign * 0.9, y - 1.2), (x + sign * 0.1, y - 1.7)]
    ring = (x + sign * 0.75, y + 0.65)
    thin: dict[str, float | str] = {"wall": 0.3, "material": "spongy", "depth": 0.6}
    return [
        _spongy(hip, hip, (0.31, 0.31), 0.06),
        _spongy(hip, (shaft[0], shaft[1] - 0.55), (0.22, 0.26), 0.1),
        _spongy((shaft[0] - sign * 0.22, shaft[1] - 0.65), shaft, (0.2, 0.24), 0.12),
        Rod((shaft[0] + sign * 0.2, shaft[1] - 0.1), shaft, (0.12, 0.2), material="spongy"),
        *chain(_arc(hip, (0.38, 0.38), np.pi * 0.9, np.pi * 2.1, 7), 0.06, wall=0.9),
        *chain(ilium, 0.12, **thin),
        *chain(back, 0.12, **thin),
        _spongy((x + sign * 0.3, y - 0.5), (x + sign * 0.2, y - 1.3), (0.3, 0.5), 0.04, 0.25),
        *chain(_arc(ring, (0.42, 0.48), 0, 2 * np.pi, 11), 0.11, **thin),
    ]


def foot_end(at: Point) -> Rods:
    """Return ankle and foot below a tibia that ends at a point, the toes towards the viewer."""
    x, y = at
    return [
        _spongy((x - 0.12, y + 0.15), (x + 0.14, y + 0.15), (0.17, 0.17), 0.1),
        _spongy((x + 0.27, y - 0.3), (x + 0.27, y + 0.1), (0.1, 0.1), 0.2),
        _spongy((x, y + 0.45), (x, y + 0.7), (0.33, 0.35), 0.08),
        Rod((x, y + 0.3), (x, y + 1.2), (0.45, 0.55), wall=1.0, material="soft"),
        *(
            Rod((x + 0.14 * k, y + 0.45), (x + 0.2 * k, y + 1.1), (0.09, 0.1), 0.8, 0.3)
            for k in (-2, -1, 0, 1, 2)
        ),
    ]


def abdomen(rng: Rng, half: float) -> Rods:
    """Return the soft tissue around a pelvis whose hips lie `half` from the midline, at y = 0."""
    gas = [
        Rod((x, y), (x, y), (float(rng.uniform(0.08, 0.25)),) * 2, material="air")
        for x, y in rng.uniform((-1.0, -2.5), (1.0, -0.6), (int(rng.integers(0, 8)), 2)).tolist()
    ]
    low = rng.uniform(-0.4, 0.3)
    return [
        _soft((-half, -2.0), (half, -2.0), (2.0 + low,) * 2, 0.45),
        _soft((-0.6, -0.9), (0.6, -0.9), (1.4 + low,) * 2, 0.35),
        *gas,
        *_spine(0.0, -5.0, -1.5, 0.33),
        _spongy((0.0, -1.3), (0.0, -0.5), (0.45, 0.15), 0.05, 0.5),
    ]


def hip(rng: Rng) -> Rods:
    """Return a pelvis with both hips, or one hip."""
    half = rng.uniform(1.0, 1.25)
    rods: Rods = [
        _soft((-half, -1.2), (half, -1.2), (1.3, 1.3)),
        _soft((0.0, -3.0), (0.0, -1.2), (1.5, 1.5), 0.5),
    ]
    for sign in (1.0, -1.0):
        joint, shaft = (-sign * half, 0.0), (-sign * (half + 0.45), 0.95)
        rods += hip_joint(sign, joint, shaft)
        low = (shaft[0] + sign * rng.uniform(0.2, 0.5), 6.0)
        rods.append(Rod(shaft, low, (0.25, 0.22), 0.8, 0.4))
        rods.append(_soft((shaft[0] + sign * 0.3, 0.0), low, (1.1, 0.9)))
    return rods + _spine(0.0, -4.5, -0.8, 0.3)


def _spine(x: float, top: float, bottom: float, radius: float) -> Rods:
    count = int((bottom - top) / (1.45 * radius))
    return [
        _spongy((x - 0.55 * radius, y), (x + 0.55 * radius, y), (0.58 * radius,) * 2, 0.12)
        for y in np.linspace(top, bottom, max(count, 2)).tolist()
    ]


def chest(rng: Rng) -> Rods:
    """Return ribs, spine, lungs, heart and collar bones."""
    half, rods = rng.uniform(1.5, 1.9), _spine(0.0, -2.8, 2.5, 0.28)
    rods.append(_soft((0.0, -1.2), (0.0, 2.5), (half + 0.5, half + 0.7), 0.55))
    rods.append(_soft((0.25, 0.6), (0.5, 0.9), (0.65, 0.6), 0.7))
    for sign in (-1.0, 1.0):
        lung = ((sign * 0.9, -0.9), (sign * 1.0, 0.9), (0.55, 0.85))
        rods.append(Rod(*lung, material="air", depth=0.5))
        for y in np.linspace(-1.6, 1.7, int(rng.integers(7, 10))).tolist():
            reach = half * (0.65 + 0.35 * float(np.sqrt(max(1 - (y / 3) ** 2, 0))))
            rib = _arc((0.0, y), (sign * reach, 0.55), -np.pi / 2, np.pi * 0.45, 8)
            rods += chain(rib, 0.06, wall=0.3, depth=0.8)
        rods += chain([(sign * 0.2, -1.6), (sign * 1.0, -1.85), (sign * 1.8, -1.9)], 0.1)
    return rods


def shoulder(rng: Rng) -> Rods:
    """Return an upper arm in its socket beside some ribs."""
    low = _polar((0.0, 0.0), rng.uniform(-0.6, 0.1), 5.0)
    ribs = [
        rod
        for y in np.linspace(-0.6, 3.0, 7).tolist()
        for rod in chain(_arc((2.6, y), (-1.7, 0.6), -np.pi / 2, np.pi / 2, 8), 0.07, wall=0.3)
    ]
    return [
        _soft((2.0, -0.5), (2.2, 4.0), (1.5, 1.8), 0.5),
        Rod((2.6, -0.2), (2.6, 3.0), (0.7, 1.0), material="air", depth=0.5),
        _soft((0.0, 0.0), low, (0.75, 0.5)),
        _spongy((0.1, -0.05), (0.0, 0.1), (0.3, 0.28), 0.08),
        Rod((0.0, 0.0), low, (0.27, 0.2), 0.8, 0.4),
        _spongy((0.55, 0.0), (1.3, 1.8), (0.3, 0.15), 0.08, 0.4),
        *chain([(0.1, -0.45), (0.9, -0.6), (2.3, -0.4)], 0.09, wall=0.4),
        *ribs,
        *_spine(2.9, -2.5, 4.0, 0.26),
    ]


def shafts(rng: Rng) -> Rods:
    """Return one or two long bones without a joint, perhaps in a cast."""
    two, width = rng.random() < 0.6, rng.uniform(0.5, 1.1)
    rods = [
        _soft((0.0, -5.0), (0.0, 5.0), (width, width * rng.uniform(0.7, 1.3))),
        Rod((0.0, -5.0), (rng.normal(0, 0.2), 5.0), (rng.uniform(0.15, 0.3),) * 2, 1.0, 0.45),
    ]
    if two:
        u = rng.uniform(0.35, 0.5) * rng.choice([-1, 1])
        rods.append(Rod((u, -5.0), (u, 5.0), (rng.uniform(0.08, 0.14),) * 2, 1.0, 0.5))
    if rng.random() < 0.35:
        cast = width + rng.uniform(0.1, 0.25)
        rods.append(Rod((0.0, -5.0), (0.0, 5.0), (cast, cast), wall=0.1, material="cast"))
    return rods


def tangle(rng: Rng) -> Rods:
    """Return random bones and blobs."""
    rods: Rods = []
    for _ in range(int(rng.integers(3, 12))):
        start = tuple(rng.uniform(-2, 2, 2).tolist())
        end = _polar((start[0], start[1]), rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 3))
        material = str(rng.choice(["bone", "spongy", "soft"]))
        radius = (rng.uniform(0.06, 0.4, 2) * (2.5 if material == "soft" else 1)).tolist()
        waist, wall = rng.uniform(0.5, 1.0), rng.uniform(0.05, 0.5)
        rods.append(Rod((start[0], start[1]), end, (radius[0], radius[1]), waist, wall, material))
    return rods


BODIES: Final = (hand, foot, ankle, elbow, hip, chest, shoulder, shafts, tangle)
