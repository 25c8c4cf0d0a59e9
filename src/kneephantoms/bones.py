"""X-ray attenuation of the femur, tibia, fibula and patella."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kneephantoms.anatomy import (
    FLOOR,
    Array,
    KneeShape,
    condyle_line,
    femur_border,
    femur_outline,
    fibula_outline,
    plateau_line,
    rim_height,
    spine_height,
    tibia_border,
    tibia_outline,
)
from kneephantoms.solids import Grid, bright_line, rounded_end, shell_chords, tube_chord

# Attenuation of a chord one plateau width (79 mm) long, above that of the soft tissue it replaces.
CORTICAL: Final = 3.6
TRABECULAR: Final = 0.95

Profile = tuple[tuple[float, ...], tuple[float, ...]]  # values over v: (v, values)


@dataclass(frozen=True, slots=True)
class LongBone:
    """A tube of cortical bone with a trabecular core and one rounded end at the joint."""

    outline: Callable[[KneeShape, Array], Array]  # lateral, medial
    extent_v: tuple[float, float]
    depth: Profile  # anteroposterior
    wall: Profile  # cortical thickness
    squareness: float  # of the cross-section
    trabeculae: Profile  # density of the core
    end_v: tuple[float, float]  # the part that `end` applies to
    end: Callable[[Grid, KneeShape], tuple[Tensor, Tensor]]  # factors on the bone and on its core


def add_bones(grid: Grid, attenuation: Tensor, shape: KneeShape, texture: Tensor) -> None:
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
    grid: Grid, attenuation: Tensor, shape: KneeShape, texture: Tensor, bone: LongBone
) -> None:
    outline = bone.outline(shape, np.clip(grid.rows, *bone.extent_v))
    part = grid.crop(float(outline[0].min()) - 0.01, float(outline[1].max()) + 0.01, *bone.extent_v)
    sides = part.per_row(outline[:, part.box[0]])
    depth, wall = part.profile(*bone.depth), part.profile(*bone.wall) * shape.cortical_thickness
    whole = tube_chord(part.u, sides, depth, bone.squareness)
    # The medullary canal is rounder than the bone, so that the wall fades inwards.
    inside = sides + torch.stack([wall, -wall])
    core = tube_chord(part.u, inside, depth - 2 * wall, 0.4 * bone.squareness)
    end = part.crop(-9.0, 9.0, *bone.end_v)
    on_whole, on_core = bone.end(end, shape)
    whole[end.box].mul_(on_whole)
    core[end.box].mul_(on_core)
    density = part.profile(*bone.trabeculae) * (TRABECULAR * shape.bone_density)
    cortex = whole.sub_(core).clamp_(min=0)
    attenuation[part.box] += core.mul_(texture[part.box] * density).add_(cortex, alpha=CORTICAL)


def _femur_end(grid: Grid, shape: KneeShape) -> tuple[Tensor, Tensor]:
    height = _above_condyles(grid, shape)
    return rounded_end(height, 0.10), rounded_end(height - 0.012, 0.11)


def _tibia_end(grid: Grid, shape: KneeShape) -> tuple[Tensor, Tensor]:
    spines = grid.per_column(spine_height(shape, grid.columns))
    height = grid.v - grid.per_column(plateau_line(shape, grid.columns)) + spines
    # The surface slopes from the anterior to the posterior rim, so the beam leaves it gradually.
    rims = grid.per_column(rim_height(shape, grid.columns))
    covered = rounded_end(height, rims + 1.5 * spines)
    return covered, covered


def _fibula_end(grid: Grid, shape: KneeShape) -> tuple[Tensor, Tensor]:
    off = grid.u + 0.50 - shape.axial_rotation  # from the styloid process
    height = grid.v - (
        0.17 + shape.fibula_v + 0.6 * off**2 + torch.where(off < 0, -0.75 * off, 0.35 * off)
    )
    return rounded_end(height, 0.08), rounded_end(height - 0.014, 0.08)


FEMUR: Final = LongBone(
    outline=femur_outline,
    extent_v=(-9.0, 0.05),
    depth=((-4.5, -1.4, -0.9, -0.5, -0.1), (0.38, 0.38, 0.44, 0.64, 0.63)),
    wall=((-4.5, -2.0, -1.3, -0.9, -0.6, 0.0), (0.07, 0.065, 0.040, 0.017, 0.006, 0.005)),
    squareness=0.8,
    trabeculae=((-2.2, -1.2, -0.6, 0.0), (0.15, 0.45, 0.9, 1.0)),
    end_v=(-0.45, 9.0),
    end=_femur_end,
)
TIBIA: Final = LongBone(
    outline=tibia_outline,
    extent_v=(-0.2, 9.0),
    depth=((-0.1, 0.1, 0.4, 0.8, 1.4, 5.0), (0.66, 0.66, 0.54, 0.42, 0.38, 0.36)),
    wall=((-0.1, 0.2, 0.4, 0.7, 1.2, 2.0, 5), (0.0045, 0.006, 0.016, 0.040, 0.064, 0.075, 0.065)),
    squareness=0.85,
    trabeculae=((0.0, 0.35, 0.7, 1.2, 2.0), (0.90, 0.94, 0.82, 0.50, 0.25)),
    end_v=(-9.0, 0.4),
    end=_tibia_end,
)
FIBULA: Final = LongBone(
    outline=fibula_outline,
    extent_v=(0.1, 9.0),
    depth=((0.15, 0.4, 0.7, 5.0), (0.24, 0.28, 0.19, 0.18)),
    wall=((0.1, 0.35, 0.6, 1.0, 5.0), (0.012, 0.014, 0.024, 0.032, 0.036)),
    squareness=0.3,
    trabeculae=((0.2, 0.45, 0.8), (0.9, 0.7, 0.15)),
    end_v=(-9.0, 0.6),
    end=_fibula_end,
)


def _add_patella(grid: Grid, attenuation: Tensor, shape: KneeShape) -> None:
    u, v, half_width, half_height, thickness = (float(value) for value in shape.patella)
    u, v = u - 1.2 * shape.axial_rotation, v + 0.05 * shape.flexion
    part = grid.crop(u - 0.45, u + 0.45, v - 0.45, v + 0.45)
    y = (part.v - v) * (1 / half_height)
    x = (part.u - u) * (1 / half_width) / (1 - 0.14 * y).clamp(min=0.3)  # narrower distally
    radius2 = x.square_() + y.square()
    y = (part.v - v) / half_height
    lobes = 1 + 0.12 * torch.cos(4 * torch.atan2(y, part.u - u))
    cortex, core = shell_chords(radius2 * (0.3 + 0.7 * radius2) * lobes, 0.03)
    bone = core.mul_(0.5 * TRABECULAR).add_(cortex, alpha=0.8 * CORTICAL)
    bone.mul_((0.75 - 0.35 * y).clamp_(0.3, 1.0))  # its distal part is thin
    attenuation[part.box] += bone.mul_(thickness * shape.bone_density)


def _open_growth_plates(grid: Grid, attenuation: Tensor, shape: KneeShape) -> None:
    """Darken the growth plates of femur, tibia and fibula between two bright lines, in place."""
    wide = shape.growth_plates
    fibula_v = 0.36 + shape.fibula_v
    for v, bend, u0, u1 in (
        (-0.36, -0.03, -0.6, 0.6),
        (0.17, 0.015, -0.46, 0.6),
        (fibula_v, 0.0, -0.8, -0.46),
    ):
        part = grid.crop(u0, u1, v - 0.12, v + 0.12)
        height = part.v - v + bend * torch.cos(part.u * 8.5)
        dark = bright_line(height, wide, wide).mul_(0.55)
        edges = bright_line(height.abs() - 1.6 * wide, 0.01, 0.01).mul_(0.15)
        attenuation[part.box] *= 1 - dark + edges


def _add_calcification(grid: Grid, attenuation: Tensor, shape: KneeShape) -> None:
    """Add calcified cartilage, a faint line within the joint space, in place."""
    part = grid.crop(-0.46, 0.46, -0.16, 0.12)
    middle = 0.5 * (femur_border(shape, part.columns) + tibia_border(shape, part.columns))
    ripple = 0.006 * np.sin(23 * part.columns + 40 * shape.calcification)
    height = part.v - part.per_column(middle + ripple)
    fade = (part.u.abs() - 0.32).div_(0.1).square_().neg_().exp_()
    attenuation[part.box] += bright_line(height, 0.007, 0.007).mul_(fade * shape.calcification)


def _above_condyles(grid: Grid, shape: KneeShape) -> Tensor:
    """Return the height (H, W) above the femur's distal end, positive inside the bone."""
    return grid.per_column(condyle_line(shape, grid.columns)) - grid.v


def _add_condyles(grid: Grid, attenuation: Tensor, shape: KneeShape) -> None:
    """Add the posterior condyles, the subchondral plate and fine lines, in place."""
    shift, bend = -0.5 * shape.axial_rotation, 0.03 * shape.flexion
    for u, half_width, half_height, clear in ((-0.27, 0.215, 0.27, 0.25), (0.31, 0.195, 0.3, 0.7)):
        part = grid.crop(u + shift - half_width, u + shift + half_width, -0.6, 0.05)
        x = (part.u - (u + shift)) * (1 / half_width)
        y = (part.v - (-0.235 - bend)) * (1 / half_height)
        radius2 = x.square_().square_() + y.square_().square_()  # a superellipse
        cortex, core = shell_chords(radius2.sqrt_().square_(), 0.025)
        fade = part.profile((-0.62, -0.5, -0.2, 0.0), (0.0, clear, 1.0, 1.0))
        bone = core.mul_(0.4 * TRABECULAR).add_(cortex, alpha=1.2 * CORTICAL).mul_(fade)
        bone.mul_(rounded_end(_above_condyles(part, shape), 0.04)).mul_(0.22 * shape.bone_density)
        attenuation[part.box] += bone
    _add_subchondral_plate(grid, attenuation, shape)
    scar, _, _, _, groove_strength, *_ = shape.lines.clip(0).tolist()
    shifts = shape.line_shifts.tolist()
    grooves = ((-0.445 + shifts[2], 0.12), (0.475 + shifts[3], 0.08))  # beside the epicondyles
    for u, strength in grooves:
        part = grid.crop(u - 0.035, u + 0.035, -0.45, -0.1)
        groove = part.u - (u + 0.012 * torch.sin(part.v * 23 + 40 * u))
        fade = part.profile((-0.45, -0.36, -0.18, -0.1), (0.0, strength, strength, 0.0))
        line = bright_line(groove, 0.007, 0.007).mul_(fade)
        attenuation[part.box] += line.mul_(groove_strength)
    _add_scar(grid, attenuation, -0.42 + shifts[0], -0.03, 0.04 * scar)


def _add_scar(grid: Grid, attenuation: Tensor, v: float, bend: float, strength: float) -> None:
    """Add the scar of a growth plate across a bone."""
    part = grid.crop(-0.44, 0.44, v - 0.07, v + 0.07)
    line = part.v - v + bend * torch.cos(part.u * 8.5)
    fade = (part.u * 2.2).square().neg().exp()
    attenuation[part.box] += bright_line(line, 0.009, 0.009).mul_(fade * strength)


def _add_subchondral_plate(grid: Grid, attenuation: Tensor, shape: KneeShape) -> None:
    """Add the plate under the femoral cartilage and the roof of the intercondylar notch."""
    part = grid.crop(-0.52, 0.52, -0.32, 0.05)
    height = _above_condyles(part, shape)
    sides = (0.47 - part.u.abs()).mul_(40).sigmoid_()
    _, _, plate_strength, roof_strength, *_ = shape.lines.clip(0).tolist()
    plate = bright_line(height - 0.012, 0.007, 0.02).mul_((height > 0) * sides)
    plate.mul_(0.07 * plate_strength)
    roof = bright_line(height - 0.055 - 0.02 * shape.flexion, 0.012, 0.012)
    near_notch = ((part.u - 0.03) / 0.11).pow(4).neg().exp()
    attenuation[part.box] += plate.add_(roof.mul_(near_notch), alpha=0.06 * roof_strength)


def _add_plateau(grid: Grid, attenuation: Tensor, shape: KneeShape) -> None:
    """Add the floor and rims of both compartments, the spines' crest and the growth plate scar."""
    part = grid.crop(-0.54, 0.54, -0.16, 0.2)
    edge = (0.485 - part.u.abs()).mul_(60).sigmoid_()
    height = part.v - part.per_column(plateau_line(shape, part.columns))
    lateral, medial = shape.sclerosis
    centre = (part.u.abs() - 0.25).div_(0.14).square_().neg_().exp_()  # of a compartment
    sclerosis = torch.where(part.u < 0, float(lateral), float(medial)) * edge
    floor = height - FLOOR * part.per_column(rim_height(shape, part.columns))
    *_, crest_strength, rim_strength = shape.lines.clip(0).tolist()
    lines = bright_line(floor, 0.012, 0.034).mul_(sclerosis * (0.08 + 0.92 * centre) * 0.34)
    lines.add_(bright_line(floor, 0.006, 0.08).mul_(sclerosis - 0.4 * edge), alpha=0.12)
    rims = (0.25 + 0.75 * centre) * edge
    lines.add_(bright_line(height - 0.004, 0.006, 0.007).mul_(rims), alpha=0.07 * rim_strength)
    spines = part.per_column(spine_height(shape, part.columns))
    crest = bright_line(height + spines - 0.010, 0.006, 0.012).mul_((spines * 40).clamp_(0, 1))
    attenuation[part.box] += lines.add_(crest, alpha=0.10 * crest_strength)
    scar, shift = float(shape.lines[1].clip(0)), float(shape.line_shifts[1])
    _add_scar(grid, attenuation, 0.19 + shift, 0.025, 0.04 * scar)
