"""X-ray attenuation of one upright leg: bones, metal implants, subcutaneous fat and muscles."""

from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kneephantoms.anatomy import (
    SKIN_V,
    Array,
    KneeShape,
    Point,
    catmull_rom,
    femur_outline,
    fibula_outline,
    tibia_outline,
)
from kneephantoms.bodies import foot_end, hip_joint
from kneephantoms.bones import add_bones
from kneephantoms.film_plan import FilmPlan
from kneephantoms.solids import (
    SOFT,
    Grid,
    Rod,
    add_rods,
    convolve,
    interpolate,
    make_grid,
    tube_chord,
)

COARSE: Final = 4  # film pixels per pixel of soft tissue, which has no finer detail
MUSCLE_ATTENUATION: Final = 1.45  # of a chord one plateau width (79 mm) long
FAT_RATIO: Final = 0.84  # attenuation of fat over that of muscle
SKIN_SOFTNESS: Final = 0.04
SATURATED: Final = 2.8  # attenuation above which metal is no denser
WHOLE_LEG_V: Final = (-4.5, 4.7)  # where the drawn femur starts and the drawn tibia ends

# v, and the lateral and medial outline there as fractions of the leg's half width
MUSCLES: Final[tuple[Array, ...]] = tuple(
    np.array(muscle)
    for muscle in (
        # vastus lateralis and medialis
        ((-4.5, -2.0, -1.0, -0.55), (-0.9, -0.88, -0.8, -0.62), (-0.1, -0.2, -0.4, -0.6)),
        ((-4.5, -2.0, -1.0, -0.5), (0.1, 0.1, 0.25, 0.6), (0.8, 0.8, 0.86, 0.64)),
        # the two heads of gastrocnemius, tibialis anterior
        ((0.1, 0.5, 1.3, 2.2, 3.2), (0.3, 0.1, 0.0, 0.1, 0.3), (0.35, 0.75, 0.93, 0.8, 0.4)),
        ((0.1, 0.5, 1.3, 2.2, 3.0), (-0.5, -0.7, -0.75, -0.6, -0.3), (-0.4, -0.1, 0.0, 0.0, -0.1)),
        ((0.3, 0.8, 1.5, 3.0, 4.5), (-0.7, -0.92, -0.94, -0.8, -0.6), (-0.6, -0.3, -0.2, -0.2, 0)),
    )
)


def draw_leg(size: tuple[int, int], origin: Point, plan: FilmPlan, number: int) -> Tensor:
    """Return the attenuation of one upright leg on a grid whose corner is `origin` (u, v)."""
    rng = np.random.default_rng([plan.seed, 7, number])
    leg, xs = plan.legs[number], [each.place.centre[0] for each in plan.legs]
    shape, px = leg.shape, leg.place.plateau_px
    midline_u = (max(xs) - min(xs)) / 2 / px if len(xs) == 2 else np.inf
    coarse = make_grid((size[0] // COARSE, size[1] // COARSE), origin, px / COARSE)
    texture = _tissue_texture(coarse, px / COARSE, rng)
    drawn = interpolate(_soft_tissue(coarse, shape, texture, midline_u), size)
    grid = make_grid(size, origin, px)
    whole = plan.framing.kind == "full_leg"
    if whole:  # no soft tissue below the foot
        drawn *= grid.profile((WHOLE_LEG_V[1] + 0.3, WHOLE_LEG_V[1] + 0.7), (1.0, 0.0))
    part = grid.crop(-1.0, 0.85, *(WHOLE_LEG_V if whole else (-9.0, 9.0)))
    if part.u.numel():
        texture = _trabecular_texture(part, px, shape.trabecular_contrast, rng)
        bones = torch.zeros_like(texture)
        add_bones(part, bones, shape, texture)
        drawn[part.box].add_(bones, alpha=plan.exposure.bone_contrast)
    if whole:
        _add_hip_and_foot(grid, drawn, shape, plan.exposure.bone_contrast)
    if leg.implant:
        add_implant(grid, drawn, shape, leg.implant, rng)
    return drawn


def draw_body(plan: FilmPlan) -> Tensor:
    """Return the attenuation (H, W) of the other parts of the body on a film."""
    rng = np.random.default_rng([plan.seed, 10])
    (height, width), px = plan.framing.size, plan.framing.unit_px
    coarse = make_grid((height // COARSE + 1, width // COARSE + 1), (0.0, 0.0), px / COARSE)
    soft = torch.zeros(len(coarse.rows), len(coarse.columns))
    add_rods(coarse, soft, [rod for rod in plan.body if rod.material in SOFT])
    soft.clamp_(min=0).mul_(_tissue_texture(coarse, px / COARSE, rng))
    large = interpolate(soft, (COARSE * soft.shape[0], COARSE * soft.shape[1]))
    grid = make_grid((height, width), (0.0, 0.0), px)
    bones = torch.zeros(height, width)
    texture = _trabecular_texture(grid, px, 1.0, rng)
    hard = [rod for rod in plan.body if rod.material not in SOFT]
    add_rods(grid, bones, hard, texture)
    return bones.mul_(plan.exposure.bone_contrast).add_(large[:height, :width])


def _add_hip_and_foot(grid: Grid, attenuation: Tensor, shape: KneeShape, contrast: float) -> None:
    """Add both ends of a whole leg to the attenuation (H, W), in place."""
    top, end = WHOLE_LEG_V
    lateral, medial = femur_outline(shape, np.array([top]))[:, 0].tolist()
    shaft = ((lateral + medial) / 2, top)
    ankle_u = float(tibia_outline(shape, np.array([end])).mean())
    rods = [*hip_joint(1.0, (shaft[0] + 0.62, top - 0.85), shaft), *foot_end((ankle_u, end))]
    ends = torch.zeros_like(attenuation)
    add_rods(grid, ends, rods)
    attenuation.add_(ends, alpha=contrast)


def _soft_tissue(grid: Grid, shape: KneeShape, texture: Tensor, midline_u: float) -> Tensor:
    """Return the attenuation (H, W) of the leg without its bones.

    `texture` (H, W) is the unevenness of the tissue, 1 on average; `midline_u` is where the leg
    touches the other one and is flattened.
    """
    skin = _skin(shape, midline_u)
    half = 0.5 * (skin[1] - skin[0])
    fat = np.clip(shape.fat, 0.04, None)
    sides = grid.per_row(catmull_rom(grid.rows, SKIN_V, skin))
    thickness = half * np.interp(SKIN_V, [-1.5, 0, 1.3, 4], [1.8, 1.72, 1.75, 1.8])
    depth = grid.per_row(catmull_rom(grid.rows, SKIN_V, thickness))
    # A leg is thicker on its lateral side, and its edge is steeper there.
    skew = 1 - 0.33 * grid.u.clamp(-1, 1)
    squareness = (grid.u * -8).sigmoid_().mul_(0.5)
    leg = tube_chord(grid.u, sides, depth, squareness, SKIN_SOFTNESS).mul_(skew * FAT_RATIO)
    inner = torch.stack([sides[0] + fat[0], sides[1] - fat[1]])
    lean = tube_chord(grid.u, inner, depth - 0.1, squareness).mul_(skew)
    leg.add_(lean, alpha=(1 - FAT_RATIO) * 0.6).mul_(texture).mul_(MUSCLE_ATTENUATION)
    for v, *outline in MUSCLES:
        middle, reach = (
            np.interp(v, SKIN_V, values)
            for values in (0.5 * (skin[0] + skin[1]), half - float(fat.mean()))
        )
        lateral, medial = (middle + side * reach for side in outline)
        part = grid.crop(float(lateral.min()), float(medial.max()), v[0], v[-1])
        ends = np.clip(np.minimum(part.rows - v[0], v[-1] - part.rows) / 0.3, 0, 1)
        depth = part.per_row(np.interp(part.rows, v, medial - lateral) * ends)
        sides = torch.stack([part.profile(v, lateral), part.profile(v, medial)])
        # Only what the muscle attenuates more than fat.
        muscle = tube_chord(part.u, sides, depth)
        leg[part.box] += muscle.mul_(MUSCLE_ATTENUATION * (1 - FAT_RATIO) * 0.85)
    return leg


def _skin(shape: KneeShape, midline_u: float) -> Array:
    """Return u of the lateral and medial skin (2, V) at SKIN_V, outside of all bones."""
    thigh = np.clip(-SKIN_V / 1.2, 0, 1)
    girth = shape.girth[0] + (shape.girth[1] - 1) * thigh
    shear = shape.tibia_shear * np.clip(SKIN_V, 0, None)
    shear = shear + shape.femur_shear * np.clip(SKIN_V, None, 0)
    femur = femur_outline(shape, np.clip(SKIN_V, None, 0.0))
    tibia = tibia_outline(shape, np.clip(SKIN_V, 0.05, None))
    fibula = fibula_outline(shape, np.clip(SKIN_V, 0.1, None))
    bones = np.where(SKIN_V < 0, femur, tibia)
    others = np.where(SKIN_V > 0.1, fibula, bones)
    lateral, medial = shape.skin * girth + shear
    lateral = np.minimum(lateral, np.minimum(bones[0], others[0]) - 0.10)
    medial = np.maximum(medial, np.maximum(bones[1], others[1]) + 0.14)
    return np.array([lateral, np.minimum(medial, midline_u)])


def _gaussian_noise(size: tuple[int, int], rng: np.random.Generator) -> Tensor:
    """Return standard normal noise (height, width)."""
    return torch.from_numpy(rng.standard_normal(size, dtype=np.float32))


def _tissue_texture(grid: Grid, px: float, rng: np.random.Generator) -> Tensor:
    """Return the unevenness (H, W) of soft tissue, streaky along the leg, 1 on average."""
    height, width = size = len(grid.rows), len(grid.columns)
    fine = (int(height / px * 9) + 3, int(width / px * 40) + 3)
    slow = _gaussian_noise((int(height / px * 3) + 3, int(width / px * 6) + 3), rng)
    texture = interpolate(slow, fine).mul_(0.022).add_(_gaussian_noise(fine, rng), alpha=0.010)
    return interpolate(texture.add_(1), size)


def _trabecular_texture(grid: Grid, px: float, contrast: float, rng: np.random.Generator) -> Tensor:
    """Return trabeculae (H, W), mostly along the bone, and slower variation; 1 on average."""
    height, width = size = len(grid.rows), len(grid.columns)
    pitch = max(px * 0.007, 1.2)  # pixels between trabeculae
    fine = (int(height / pitch / 1.5) + 2, int(width / pitch) + 2)
    strength = min(px * 0.007, 1.0) * contrast  # less where pixels are too coarse
    specks = _gaussian_noise(fine, rng)
    streaks = convolve(specks, [1.0] * 7, 0).mul_(0.11 * strength)
    slow = _gaussian_noise((int(height / px * 8) + 2, int(width / px * 9) + 2), rng)
    texture = interpolate(slow, fine).mul_(0.08)
    texture += streaks.add_(specks, alpha=0.055 * strength).add_(1)
    return interpolate(texture, size)


def add_implant(
    grid: Grid, attenuation: Tensor, shape: KneeShape, kind: str, rng: np.random.Generator
) -> None:
    """Add "total", "partial", "plate" or "nail" to a leg's attenuation (H, W), in place."""
    rods = {"total": _total, "partial": _partial, "plate": _plate, "nail": _nail}[kind](shape, rng)
    metal = torch.zeros_like(attenuation)
    add_rods(grid, metal, rods)
    attenuation += metal.clamp_(max=SATURATED)


def _metal(u0: float, v0: float, u1: float, v1: float, *radius: float) -> Rod:
    return Rod((u0, v0), (u1, v1), (radius[0], radius[-1]), wall=1.0, material="metal")


def _total(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """Return a femoral shield and a tibial tray with its stem; the inlay is radiolucent."""
    tray, top, wide = rng.uniform(0.02, 0.08), rng.uniform(-0.5, -0.36), rng.uniform(0.43, 0.47)
    apex = rng.uniform(-0.18, 0.08)
    return [
        *(_metal(u, -0.31, u * 1.02, -0.165, 0.17, 0.15) for u in (-0.28, 0.30)),
        *(_metal(u, -0.26, u * 1.1, -0.10, 0.10, 0.07) for u in (-0.36, -0.2, 0.22, 0.38)),
        _metal(apex, top + 0.2, 0.0, -0.3, 0.2, 0.28),
        _metal(-wide, tray, wide, tray, 0.028),
        _metal(0.0, tray + 0.04, rng.normal(0, 0.02), tray + rng.uniform(0.35, 0.65), 0.2, 0.05),
    ]


def _partial(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """Return a curved piece on one condyle and a small tray with pegs, mostly medial."""
    side = 1.0 if rng.random() < 0.85 else -1.0
    tray, end = rng.uniform(0.03, 0.07), rng.uniform(0.44, 0.5)
    return [
        _metal(side * 0.36, rng.uniform(-0.42, -0.34), side * 0.32, -0.13, 0.075, 0.09),
        _metal(side * 0.34, -0.14, side * 0.28, -0.09, 0.07),
        _metal(side * 0.17, tray, side * end, tray, 0.025),
        *(_metal(side * u, tray, side * u, tray + 0.08, 0.025) for u in (0.25, 0.37)),
    ]


def _plate(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """Return a buttress plate at the tibia or at the femur, with screws."""
    side, down = float(rng.choice([-1, -1, 1])), 1.0 if rng.random() < 0.7 else -1.0
    start = 0.06 if down > 0 else -0.12
    line = [(0.53, start), (0.49, start + down * 0.2), (0.34, start + down * 0.45)]
    line += [(0.25, start + down * 0.85), (0.22, start + down * rng.uniform(1.1, 2.2))]
    rods = [_metal(side * u0, v0, side * u1, v1, 0.03) for (u0, v0), (u1, v1) in pairwise(line)]
    for share in (0.02, 0.06, 0.3, 0.55, 0.75):
        v = start + down * (0.03 + 1.3 * share)
        u = float(np.interp(abs(v - start), [0.0, 0.2, 0.45, 0.85, 2.2], [p[0] for p in line]))
        length = 0.85 if share < 0.1 else 0.45
        rods.append(_metal(side * u, v, side * (u - length), v + rng.normal(0, 0.03), 0.025))
    return rods


def _nail(shape: KneeShape, rng: np.random.Generator) -> list[Rod]:
    """Return an intramedullary nail in the tibia or in the femur, and its locking screws."""
    if rng.random() < 0.7:
        far, start, axis = 4.2, rng.uniform(0.08, 0.2), 0.09 + 4 * shape.tibia_shear
        screws, near = (0.35, 0.55), 0.04
    else:
        far, start, axis = -4.2, rng.uniform(-0.35, -0.2), -0.25 - 3.7 * shape.femur_shear
        screws, near = (-0.4, -0.6), 0.02
    return [
        _metal(near, start, axis, far, 0.055),
        *(_metal(-0.3, v, 0.33, v + rng.normal(0.02, 0.03), 0.022) for v in screws),
    ]
