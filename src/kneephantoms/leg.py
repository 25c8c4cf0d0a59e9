"""X-ray attenuation of one upright leg: fat, muscles, bones and metal implants."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from kneephantoms import anatomy, solids
from kneephantoms.anatomy import SKIN_V, Array, KneeShape, Map, Point, Rng, Size
from kneephantoms.bodies import foot_end, hip_joint
from kneephantoms.film_plan import FilmPlan
from kneephantoms.solids import Grid, Rod, add_rods, bright_line, make_grid, rounded_end, tube_chord

COARSE: Final = 4  # film pixels per pixel of soft tissue, which has no finer detail
MUSCLE_ATTENUATION: Final = 1.45  # along a chord one plateau width (79 mm) long
FAT_RATIO: Final = 0.84  # attenuation of fat over that of muscle
SKIN_SOFTNESS: Final = 0.04
SATURATED: Final = 2.8  # attenuation above which metal is no denser
WHOLE_LEG_V: Final = (-4.5, 4.7)  # where the drawn femur starts and the drawn tibia ends

# Attenuation of a chord one plateau width (79 mm) long, above that of the soft tissue it replaces.
CORTICAL: Final = 3.6
TRABECULAR: Final = 0.95

Profile = tuple[tuple[float, ...], tuple[float, ...]]  # values over v: (v, values)

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


def render_leg(size: Size, origin: Point, plan: FilmPlan, number: int) -> Map:
    """Return the attenuation of one upright leg on a grid whose corner is `origin` (u, v)."""
    rng = np.random.default_rng([plan.seed, 7, number])
    leg, xs = plan.legs[number], [each.place.centre[0] for each in plan.legs]
    shape, px = leg.shape, leg.place.plateau_px
    midline_u = (max(xs) - min(xs)) / 2 / px if len(xs) == 2 else np.inf
    coarse = make_grid((size[0] // COARSE, size[1] // COARSE), origin, px / COARSE)
    texture = _tissue_texture(coarse, px / COARSE, rng)
    drawn = solids.interpolate(_soft_tissue(coarse, shape, texture, midline_u), size)
    grid = make_grid(size, origin, px)
    whole = plan.framing.kind == "full_leg"
    if whole:  # no soft tissue below the foot
        drawn *= grid.profile((WHOLE_LEG_V[1] + 0.3, WHOLE_LEG_V[1] + 0.7), (1.0, 0.0))
    part = grid.crop(-1.0, 0.85, *(WHOLE_LEG_V if whole else (-9.0, 9.0)))
    if part.u.size:
        texture = _trabecular_texture(part, px, shape.trabecular_contrast, rng)
        bones = np.zeros_like(texture)
        _add_bones(part, bones, shape, texture)
        drawn[part.box] += plan.exposure.bone_contrast * bones
    if whole:
        _add_hip_and_foot(grid, drawn, shape, plan.exposure.bone_contrast)
    if leg.implant:
        add_implant(grid, drawn, shape, leg.implant, rng)
    return drawn


def render_body(plan: FilmPlan) -> Map:
    """Return the attenuation (H, W) of the other parts of the body on a film."""
    rng = np.random.default_rng([plan.seed, 10])
    (height, width), px = plan.framing.size, plan.framing.unit_px
    coarse = make_grid((height // COARSE + 1, width // COARSE + 1), (0.0, 0.0), px / COARSE)
    soft = np.zeros((len(coarse.rows), len(coarse.columns)), np.float32)
    add_rods(coarse, soft, [rod for rod in plan.body if rod.material in solids.SOFT])
    soft = np.maximum(soft, 0) * _tissue_texture(coarse, px / COARSE, rng)
    large = solids.interpolate(soft, (COARSE * soft.shape[0], COARSE * soft.shape[1]))
    grid = make_grid((height, width), (0.0, 0.0), px)
    bones = np.zeros((height, width), np.float32)
    texture = _trabecular_texture(grid, px, 1.0, rng)
    hard = [rod for rod in plan.body if rod.material not in solids.SOFT]
    add_rods(grid, bones, hard, texture)
    return plan.exposure.bone_contrast * bones + large[:height, :width]


def _add_hip_and_foot(grid: Grid, attenuation: Map, shape: KneeShape, contrast: float) -> None:
    """Add both ends of a whole leg to the attenuation (H, W), in place."""
    top, end = WHOLE_LEG_V
    lateral, medial = anatomy.femur_outline(shape, np.array([top]))[:, 0].tolist()
    shaft = ((lateral + medial) / 2, top)
    ankle_u = float(anatomy.tibia_outline(shape, np.array([end])).mean())
    rods = [*hip_joint(1.0, (shaft[0] + 0.62, top - 0.85), shaft), *foot_end((ankle_u, end))]
    ends = np.zeros_like(attenuation)
    add_rods(grid, ends, rods)
    attenuation += contrast * ends


def _soft_tissue(grid: Grid, shape: KneeShape, texture: Map, midline_u: float) -> Map:
    """Return the attenuation (H, W) of the leg without its bones.

    `texture` (H, W) is the unevenness of the tissue, 1 on average; `midline_u` is where the leg
    touches the other one and is flattened.
    """
    skin = _skin(shape, midline_u)
    half = 0.5 * (skin[1] - skin[0])
    fat = np.clip(shape.fat, 0.04, None)
    sides = grid.per_row(anatomy.catmull_rom(grid.rows, SKIN_V, skin))
    thickness = half * np.interp(SKIN_V, [-1.5, 0, 1.3, 4], [1.8, 1.72, 1.75, 1.8])
    depth = grid.per_row(anatomy.catmull_rom(grid.rows, SKIN_V, thickness))
    # A leg is thicker on its lateral side, and its edge is steeper there.
    skew = 1 - 0.33 * np.clip(grid.u, -1, 1)
    squareness = 0.25 * (1 - np.tanh(4 * grid.u))
    leg = tube_chord(grid.u, sides, depth, squareness, SKIN_SOFTNESS) * (FAT_RATIO * skew)
    inner = sides + grid.per_row(np.array([[fat[0]], [-fat[1]]]))
    lean = tube_chord(grid.u, inner, depth - 0.1, squareness)
    leg += lean * ((1 - FAT_RATIO) * 0.6 * skew)
    leg *= MUSCLE_ATTENUATION * texture
    for v, *outline in MUSCLES:
        middle, reach = (
            np.interp(v, SKIN_V, values)
            for values in (0.5 * (skin[0] + skin[1]), half - float(fat.mean()))
        )
        lateral, medial = (middle + side * reach for side in outline)
        part = grid.crop(float(lateral.min()), float(medial.max()), v[0], v[-1])
        ends = np.clip(np.minimum(part.rows - v[0], v[-1] - part.rows) / 0.3, 0, 1)
        depth = part.per_row(np.interp(part.rows, v, medial - lateral) * ends)
        sides = np.stack([part.profile(v, lateral), part.profile(v, medial)])
        # Only what the muscle attenuates more than fat.
        muscle = tube_chord(part.u, sides, depth)
        leg[part.box] += MUSCLE_ATTENUATION * (1 - FAT_RATIO) * 0.85 * muscle
    return leg


def _skin(shape: KneeShape, midline_u: float) -> Array:
    """Return u of the lateral and medial skin (2, V) at SKIN_V, outside of all bones."""
    thigh = np.clip(-SKIN_V / 1.2, 0, 1)
    girth = shape.girth[0] + (shape.girth[1] - 1) * thigh
    shear = shape.tibia_shear * np.clip(SKIN_V, 0, None)
    shear = shear + shape.femur_shear * np.clip(SKIN_V, None, 0)
    femur = anatomy.femur_outline(shape, np.clip(SKIN_V, None, 0.0))
    tibia = anatomy.tibia_outline(shape, np.clip(SKIN_V, 0.05, None))
    fibula = anatomy.fibula_outline(shape, np.clip(SKIN_V, 0.1, None))
    bones = np.where(SKIN_V < 0, femur, tibia)
    others = np.where(SKIN_V > 0.1, fibula, bones)
    lateral, medial = shape.skin * girth + shear
    lateral = np.minimum(lateral, np.minimum(bones[0], others[0]) - 0.10)
    medial = np.maximum(medial, np.maximum(bones[1], others[1]) + 0.14)
    return np.array([lateral, np.minimum(medial, midline_u)])


def _gaussian_noise(size: Size, rng: Rng) -> Map:
    """Return standard normal noise (height, width)."""
    return rng.standard_normal(size, dtype=np.float32)


def _tissue_texture(grid: Grid, px: float, rng: Rng) -> Map:
    """Return the unevenness (H, W) of soft tissue, streaky along the leg, 1 on average."""
    height, width = size = len(grid.rows), len(grid.columns)
    fine = (int(height / px * 9) + 3, int(width / px * 40) + 3)
    slow = _gaussian_noise((int(height / px * 3) + 3, int(width / px * 6) + 3), rng)
    texture = 1 + 0.022 * solids.interpolate(slow, fine) + 0.010 * _gaussian_noise(fine, rng)
    return solids.interpolate(texture, size)


def _trabecular_texture(grid: Grid, px: float, contrast: float, rng: Rng) -> Map:
    """Return trabeculae (H, W), mostly along the bone, and slower variation; 1 on average."""
    height, width = size = len(grid.rows), len(grid.columns)
    pitch = max(px * 0.007, 1.2)  # pixels between trabeculae
    fine = (int(height / pitch / 1.5) + 2, int(width / pitch) + 2)
    strength = min(px * 0.007, 1.0) * contrast  # less where pixels are too coarse
    specks = _gaussian_noise(fine, rng)
    streaks = solids.convolve(specks, [1.0] * 7, 0)
    slow = _gaussian_noise((int(height / px * 8) + 2, int(width / px * 9) + 2), rng)
    texture = 1 + 0.08 * solids.interpolate(slow, fine)
    texture += strength * (0.11 * streaks + 0.055 * specks)
    return solids.interpolate(texture, size)


@dataclass(frozen=True, slots=True)
class LongBone:
    """A tube of cortical bone with a trabecular core and one rounded end at the joint."""

    outline: Callable[[KneeShape, Array], Array]  # lateral, medial
    extent_v: tuple[float, float]
    depth: Profile  # anteroposterior
    wall: Profile  # cortical thickness
    squareness: float  # how square the cross-section is
    trabeculae: Profile  # density of the core
    end_v: tuple[float, float]  # the part that `end` applies to
    end: Callable[[Grid, KneeShape], tuple[Map, Map]]  # factors on the bone and on its core


def _add_bones(grid: Grid, attenuation: Map, shape: KneeShape, texture: Map) -> None:
    """Add the four bones to the attenuation (H, W), in place.

    `texture` (H, W) is the trabecular texture, 1 on average. Their far ends are not drawn.
    """
    _add_long_bone(grid, attenuation, shape, texture, FEMUR)
    _add_condyles(grid, attenuation, shape)
    _add_long_bone(grid, attenuation, shape, texture, TIBIA)
    _add_plateau(grid, attenuation, shape)
    _add_long_bone(grid, attenuation, shape, texture, FIBULA)
    _add_patella(grid, attenuation, shape)
    if shape.growth_plates > 0:
        _open_growth_plates(grid, attenuation, shape)
    if shape.calcification > 0:
        _add_calcification(grid, attenuation, shape)


def _add_long_bone(
    grid: Grid, attenuation: Map, shape: KneeShape, texture: Map, bone: LongBone
) -> None:
    outline = bone.outline(shape, np.clip(grid.rows, *bone.extent_v))
    part = grid.crop(float(outline[0].min()) - 0.01, float(outline[1].max()) + 0.01, *bone.extent_v)
    sides = part.per_row(outline[:, part.box[0]])
    depth, wall = part.profile(*bone.depth), part.profile(*bone.wall) * shape.cortical_thickness
    whole = tube_chord(part.u, sides, depth, bone.squareness)
    # The medullary canal is rounder than the bone, so that the wall fades inwards.
    inside = sides + np.stack([wall, -wall])
    core = tube_chord(part.u, inside, depth - 2 * wall, 0.4 * bone.squareness)
    end = part.crop(-9.0, 9.0, *bone.end_v)
    on_whole, on_core = bone.end(end, shape)
    whole[end.box] *= on_whole
    core[end.box] *= on_core
    density = part.profile(*bone.trabeculae) * (TRABECULAR * shape.bone_density)
    cortex = np.maximum(whole - core, 0)
    attenuation[part.box] += core * (texture[part.box] * density) + CORTICAL * cortex


def _femur_end(grid: Grid, shape: KneeShape) -> tuple[Map, Map]:
    height = _above_condyles(grid, shape)
    return rounded_end(height, 0.10), rounded_end(height - 0.012, 0.11)


def _tibia_end(grid: Grid, shape: KneeShape) -> tuple[Map, Map]:
    spines = grid.per_column(anatomy.spine_height(shape, grid.columns))
    height = grid.v - grid.per_column(anatomy.plateau_line(shape, grid.columns)) + spines
    # The surface slopes from the anterior to the posterior rim, so the beam leaves it gradually.
    rims = grid.per_column(anatomy.rim_height(shape, grid.columns))
    covered = rounded_end(height, rims + 1.5 * spines)
    return covered, covered


def _fibula_end(grid: Grid, shape: KneeShape) -> tuple[Map, Map]:
    off = grid.u + 0.50 - shape.axial_rotation  # from the styloid process
    height = grid.v - (0.17 + shape.fibula_v + 0.6 * off**2 + np.maximum(-0.75 * off, 0.35 * off))
    return rounded_end(height, 0.08), rounded_end(height - 0.014, 0.08)


FEMUR: Final = LongBone(
    outline=anatomy.femur_outline,
    extent_v=(-9.0, 0.05),
    depth=((-4.5, -1.4, -0.9, -0.5, -0.1), (0.38, 0.38, 0.44, 0.64, 0.63)),
    wall=((-4.5, -2.0, -1.3, -0.9, -0.6, 0.0), (0.07, 0.065, 0.040, 0.017, 0.006, 0.005)),
    squareness=0.8,
    trabeculae=((-2.2, -1.2, -0.6, 0.0), (0.15, 0.45, 0.9, 1.0)),
    end_v=(-0.45, 9.0),
    end=_femur_end,
)
TIBIA: Final = LongBone(
    outline=anatomy.tibia_outline,
    extent_v=(-0.2, 9.0),
    depth=((-0.1, 0.1, 0.4, 0.8, 1.4, 5.0), (0.66, 0.66, 0.54, 0.42, 0.38, 0.36)),
    wall=((-0.1, 0.2, 0.4, 0.7, 1.2, 2.0, 5), (0.0045, 0.006, 0.016, 0.040, 0.064, 0.075, 0.065)),
    squareness=0.85,
    trabeculae=((0.0, 0.35, 0.7, 1.2, 2.0), (0.90, 0.94, 0.82, 0.50, 0.25)),
    end_v=(-9.0, 0.4),
    end=_tibia_end,
)
FIBULA: Final = LongBone(
    outline=anatomy.fibula_outline,
    extent_v=(0.1, 9.0),
    depth=((0.15, 0.4, 0.7, 5.0), (0.24, 0.28, 0.19, 0.18)),
    wall=((0.1, 0.35, 0.6, 1.0, 5.0), (0.012, 0.014, 0.024, 0.032, 0.036)),
    squareness=0.3,
    trabeculae=((0.2, 0.45, 0.8), (0.9, 0.7, 0.15)),
    end_v=(-9.0, 0.6),
    end=_fibula_end,
)


def _add_patella(grid: Grid, attenuation: Map, shape: KneeShape) -> None:
    u, v, half_width, half_height, thickness = (float(value) for value in shape.patella)
    u, v = u - 1.2 * shape.axial_rotation, v + 0.05 * shape.flexion
    part = grid.crop(u - 0.45, u + 0.45, v - 0.45, v + 0.45)
    y = (part.v - v) * (1 / half_height)
    x = (part.u - u) * (1 / half_width) / np.maximum(1 - 0.14 * y, 0.3)  # narrower distally
    radius2 = np.square(x) + np.square(y)
    y = (part.v - v) / half_height
    lobes = 1 + 0.12 * np.cos(4 * np.arctan2(y, part.u - u))
    cortex, core = solids.shell_chords(radius2 * (0.3 + 0.7 * radius2) * lobes, 0.03)
    bone = 0.5 * TRABECULAR * core + 0.8 * CORTICAL * cortex
    bone *= np.clip(0.75 - 0.35 * y, 0.3, 1.0)  # its distal part is thin
    attenuation[part.box] += thickness * shape.bone_density * bone


def _open_growth_plates(grid: Grid, attenuation: Map, shape: KneeShape) -> None:
    """Darken the growth plates of femur, tibia and fibula between two bright lines, in place."""
    wide = shape.growth_plates
    fibula_v = 0.36 + shape.fibula_v
    for v, bend, u0, u1 in (
        (-0.36, -0.03, -0.6, 0.6),
        (0.17, 0.015, -0.46, 0.6),
        (fibula_v, 0.0, -0.8, -0.46),
    ):
        part = grid.crop(u0, u1, v - 0.12, v + 0.12)
        height = part.v - v + bend * np.cos(part.u * 8.5)
        dark = 0.55 * bright_line(height, wide, wide)
        edges = 0.15 * bright_line(np.abs(height) - 1.6 * wide, 0.01, 0.01)
        attenuation[part.box] *= 1 - dark + edges


def _add_calcification(grid: Grid, attenuation: Map, shape: KneeShape) -> None:
    """Add calcified cartilage, a faint line within the joint space, in place."""
    part = grid.crop(-0.46, 0.46, -0.16, 0.12)
    femur, tibia = (
        border(shape, part.columns) for border in (anatomy.femur_border, anatomy.tibia_border)
    )
    ripple = 0.006 * np.sin(23 * part.columns + 40 * shape.calcification)
    height = part.v - part.per_column(0.5 * (femur + tibia) + ripple)
    fade = np.exp(-np.square((np.abs(part.u) - 0.32) / 0.1))
    attenuation[part.box] += bright_line(height, 0.007, 0.007) * (fade * shape.calcification)


def _above_condyles(grid: Grid, shape: KneeShape) -> Map:
    """Return the height (H, W) above the femur's distal end, positive inside the bone."""
    return grid.per_column(anatomy.condyle_line(shape, grid.columns)) - grid.v


def _add_condyles(grid: Grid, attenuation: Map, shape: KneeShape) -> None:
    """Add the posterior condyles, the subchondral plate and fine lines, in place."""
    shift, bend = -0.5 * shape.axial_rotation, 0.03 * shape.flexion
    for u, half_width, half_height, clear in ((-0.27, 0.215, 0.27, 0.25), (0.31, 0.195, 0.3, 0.7)):
        part = grid.crop(u + shift - half_width, u + shift + half_width, -0.6, 0.05)
        x = (part.u - (u + shift)) * (1 / half_width)
        y = (part.v - (-0.235 - bend)) * (1 / half_height)
        radius2 = np.square(np.square(x)) + np.square(np.square(y))  # a superellipse
        cortex, core = solids.shell_chords(np.square(np.sqrt(radius2)), 0.025)
        fade = part.profile((-0.62, -0.5, -0.2, 0.0), (0.0, clear, 1.0, 1.0))
        bone = fade * (0.4 * TRABECULAR * core + 1.2 * CORTICAL * cortex)
        bone *= rounded_end(_above_condyles(part, shape), 0.04)
        attenuation[part.box] += 0.22 * shape.bone_density * bone
    _add_subchondral_plate(grid, attenuation, shape)
    scar, _, _, _, groove_strength, *_ = shape.lines.clip(0).tolist()
    shifts = shape.line_shifts.tolist()
    grooves = ((-0.445 + shifts[2], 0.12), (0.475 + shifts[3], 0.08))  # beside the epicondyles
    for u, strength in grooves:
        part = grid.crop(u - 0.035, u + 0.035, -0.45, -0.1)
        groove = part.u - (u + 0.012 * np.sin(part.v * 23 + 40 * u))
        fade = part.profile((-0.45, -0.36, -0.18, -0.1), (0.0, strength, strength, 0.0))
        attenuation[part.box] += bright_line(groove, 0.007, 0.007) * (groove_strength * fade)
    _add_scar(grid, attenuation, -0.42 + shifts[0], -0.03, 0.04 * scar)


def _add_scar(grid: Grid, attenuation: Map, v: float, bend: float, strength: float) -> None:
    """Add the scar of a growth plate across a bone."""
    part = grid.crop(-0.44, 0.44, v - 0.07, v + 0.07)
    line = part.v - v + bend * np.cos(part.u * 8.5)
    fade = np.exp(-np.square(part.u * 2.2))
    attenuation[part.box] += bright_line(line, 0.009, 0.009) * (fade * strength)


def _add_subchondral_plate(grid: Grid, attenuation: Map, shape: KneeShape) -> None:
    """Add the plate under the femoral cartilage and the roof of the intercondylar notch."""
    part = grid.crop(-0.52, 0.52, -0.32, 0.05)
    height = _above_condyles(part, shape)
    sides = 0.5 + 0.5 * np.tanh(20 * (0.47 - np.abs(part.u)))
    _, _, plate_strength, roof_strength, *_ = shape.lines.clip(0).tolist()
    plate = bright_line(height - 0.012, 0.007, 0.02) * (height > 0)
    plate *= 0.07 * plate_strength * sides
    roof = bright_line(height - 0.055 - 0.02 * shape.flexion, 0.012, 0.012)
    near_notch = np.exp(-np.square(np.square((part.u - 0.03) / 0.11)))
    attenuation[part.box] += plate + roof * (0.06 * roof_strength * near_notch)


def _add_plateau(grid: Grid, attenuation: Map, shape: KneeShape) -> None:
    """Add the floor and rims of both compartments, the spines' crest and the growth plate scar."""
    part = grid.crop(-0.54, 0.54, -0.16, 0.2)
    edge = 0.5 + 0.5 * np.tanh(30 * (0.485 - np.abs(part.u)))
    height = part.v - part.per_column(anatomy.plateau_line(shape, part.columns))
    lateral, medial = shape.sclerosis
    # 1 in the middle of a compartment
    centre = np.exp(-np.square((np.abs(part.u) - 0.25) / 0.14))
    sclerosis = np.where(part.u < 0, np.float32(lateral), np.float32(medial)) * edge
    floor = height - anatomy.FLOOR * part.per_column(anatomy.rim_height(shape, part.columns))
    *_, crest_strength, rim_strength = shape.lines.clip(0).tolist()
    lines = bright_line(floor, 0.012, 0.034) * (sclerosis * (0.08 + 0.92 * centre) * 0.34)
    lines += bright_line(floor, 0.006, 0.08) * (0.12 * (sclerosis - 0.4 * edge))
    rims = (0.25 + 0.75 * centre) * edge
    lines += bright_line(height - 0.004, 0.006, 0.007) * (0.07 * rim_strength * rims)
    spines = part.per_column(anatomy.spine_height(shape, part.columns))
    crest = bright_line(height + spines - 0.010, 0.006, 0.012)
    crest *= 0.10 * crest_strength * np.clip(spines * 40, 0, 1)
    attenuation[part.box] += lines + crest
    scar, shift = float(shape.lines[1].clip(0)), float(shape.line_shifts[1])
    _add_scar(grid, attenuation, 0.19 + shift, 0.025, 0.04 * scar)


def add_implant(grid: Grid, attenuation: Map, shape: KneeShape, kind: str, rng: Rng) -> None:
    """Add "total", "partial", "plate" or "nail" to a leg's attenuation (H, W), in place."""
    rods = {"total": _total, "partial": _partial, "plate": _plate, "nail": _nail}[kind](shape, rng)
    metal = np.zeros_like(attenuation)
    add_rods(grid, metal, rods)
    attenuation += np.minimum(metal, SATURATED)


def _metal(u0: float, v0: float, u1: float, v1: float, *radius: float) -> Rod:
    return Rod((u0, v0), (u1, v1), (radius[0], radius[-1]), wall=1.0, material="metal")


def _total(shape: KneeShape, rng: Rng) -> list[Rod]:
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


def _partial(shape: KneeShape, rng: Rng) -> list[Rod]:
    """Return a curved piece on one condyle and a small tray with pegs, mostly medial."""
    side = 1.0 if rng.random() < 0.85 else -1.0
    tray, end = rng.uniform(0.03, 0.07), rng.uniform(0.44, 0.5)
    return [
        _metal(side * 0.36, rng.uniform(-0.42, -0.34), side * 0.32, -0.13, 0.075, 0.09),
        _metal(side * 0.34, -0.14, side * 0.28, -0.09, 0.07),
        _metal(side * 0.17, tray, side * end, tray, 0.025),
        *(_metal(side * u, tray, side * u, tray + 0.08, 0.025) for u in (0.25, 0.37)),
    ]


def _plate(shape: KneeShape, rng: Rng) -> list[Rod]:
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


def _nail(shape: KneeShape, rng: Rng) -> list[Rod]:
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
