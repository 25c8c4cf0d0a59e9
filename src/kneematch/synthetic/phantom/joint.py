"""What the joint's surfaces add to the bones: plates, rims and contours that the beam grazes."""

import torch
from torch import Tensor

from kneematch.synthetic.phantom.anatomy import Shape
from kneematch.synthetic.phantom.outlines import condyle_line, plateau_line, spine_height
from kneematch.synthetic.phantom.shapes import Canvas, dome, ellipsoid, ridge, shell

# Attenuation of a chord one plateau width (75 mm) long, over that of the soft tissue it replaces.
CORTICAL = 3.6
TRABECULAR = 0.95


def add_condyles(canvas: Canvas, attenuation: Tensor, shape: Shape) -> None:
    """Add the backs of both condyles and the bone under their cartilage, in place."""
    shift, bend = -0.5 * float(shape.turn[0]), 0.03 * float(shape.flexion[0])
    for u, radii, clear in ((-0.27, (0.215, 0.27), 0.25), (0.31, (0.195, 0.30), 0.7)):
        part = canvas.part(u + shift - radii[0], u + shift + radii[0], -0.6, 0.05)
        if part is None:
            continue
        height = part.across(condyle_line(shape, part.columns)) - part.v
        radius2 = ellipsoid(part, (u + shift, -0.235 - bend), radii, boxy=True)
        cortex, core = shell(radius2.square_(), 0.025)
        fade = part.profile((-0.62, -0.5, -0.2, 0.0), (0.0, clear, 1.0, 1.0))
        bone = core.mul_(0.4 * TRABECULAR).add_(cortex, alpha=1.2 * CORTICAL).mul_(fade)
        attenuation[part.box] += bone.mul_(dome(height, 0.04)).mul_(0.22 * float(shape.density[0]))
    _add_condyle_plate(canvas, attenuation, shape)
    _add_condyle_lines(canvas, attenuation)


def _add_condyle_plate(canvas: Canvas, attenuation: Tensor, shape: Shape) -> None:
    """Add the plate under the cartilage and the notch's roof, which the beam meets end on."""
    part = canvas.part(-0.52, 0.52, -0.32, 0.05)
    if part is None:
        return
    height = part.across(condyle_line(shape, part.columns)) - part.v
    sides = (0.47 - part.u.abs()).mul_(40).sigmoid_()
    plate = ridge(height - 0.012, 0.007, 0.02).mul_((height > 0) * sides * 0.10)
    roof = ridge(height - 0.055 - 0.02 * float(shape.flexion[0]), 0.012, 0.012)
    near = ((part.u - 0.03) / 0.11).pow(4).neg().exp()  # the notch
    attenuation[part.box] += plate.add_(roof.mul_(near), alpha=0.06)


def _add_condyle_lines(canvas: Canvas, attenuation: Tensor) -> None:
    """Add the grooves beside the epicondyles and the growth plate's scar."""
    for u, strength in ((-0.445, 0.12), (0.475, 0.08)):
        part = canvas.part(u - 0.035, u + 0.035, -0.45, -0.1)
        if part is not None:
            groove = part.u - (u + 0.012 * torch.sin(part.v * 23 + 40 * u))
            reach = part.profile((-0.45, -0.36, -0.18, -0.1), (0.0, strength, strength, 0.0))
            attenuation[part.box] += ridge(groove, 0.007, 0.007).mul_(reach)
    part = canvas.part(-0.46, 0.46, -0.48, -0.36)
    if part is not None:
        scar = part.v + 0.42 + 0.03 * torch.cos(part.u * 9)
        attenuation[part.box] += ridge(scar, 0.01, 0.01).mul_(0.03)


def plateau_cover(part: Canvas, shape: Shape) -> Tensor:
    """Part of the tibia's depth that the beam still meets near its upper end, spines included."""
    top = part.across(spine_height(shape, part.columns))
    height = part.v - part.across(plateau_line(shape, part.columns)) + top
    # From the front rim to the back one the surface falls: the beam leaves it bit by bit.
    return dome(height, rim_height(shape) + 1.5 * top)


def rim_height(shape: Shape) -> float:
    """v between the plateau's front and back rim."""
    return max(float(shape.rim[0]), 0.015)


def add_plateau(canvas: Canvas, attenuation: Tensor, shape: Shape) -> None:
    """Add the floor and rim of both compartments and the growth plate's scar, in place."""
    part = canvas.part(-0.54, 0.54, -0.16, 0.2)
    if part is None:
        return
    edge = (0.485 - part.u.abs()).mul_(60).sigmoid_()
    height = part.v - part.across(plateau_line(shape, part.columns))
    lateral, medial = shape.sclerosis
    middle = (part.u.abs() - 0.25).div_(0.14).square_().neg_().exp_()  # of a compartment
    weight = torch.where(part.u < 0, float(lateral), float(medial)) * edge
    floor = height - 0.7 * rim_height(shape)
    lines = ridge(floor, 0.010, 0.030).mul_(weight * (0.2 + 0.8 * middle) * 0.36)
    lines.add_(ridge(floor, 0.006, 0.08).mul_(weight - 0.4 * edge), alpha=0.12)
    rims = (0.25 + 0.75 * middle) * edge
    lines.add_(ridge(height - 0.004, 0.006, 0.007).mul_(rims), alpha=0.07)
    top = part.across(spine_height(shape, part.columns))
    crest = ridge(height + top - 0.010, 0.006, 0.012).mul_((top * 40).clamp_(0, 1))
    attenuation[part.box] += lines.add_(crest, alpha=0.10)
    part = canvas.part(-0.46, 0.46, 0.14, 0.25)
    if part is not None:
        scar = part.v - 0.19 + 0.025 * torch.cos(part.u * 8)
        attenuation[part.box] += ridge(scar, 0.008, 0.008).mul_(0.03)
