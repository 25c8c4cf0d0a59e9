"""The energy that every minimiser lowers: cross-correlation plus symmetry (paper, Sect. 4)."""

from dataclasses import dataclass
from typing import Final

from torch import Tensor, minimum

from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.sampling import sample
from kneematch.matching.local_contrast import normalize_local_contrast
from kneematch.matching.template import Template

# Below this share of the half's own deviation a patch is constant: to rounding in the printed
# energy, and to the eye, since noise correlates with anything, in the robust one.
ROUNDING: Final = 1e-5
CONTRAST: Final = 0.15
# The weight of the fine structure in the robust energy, against that of the film as it is.
LOCAL_CONTRAST_WEIGHT: Final = 0.5
TINY: Final = 1e-20  # keeps the derivative of a length finite at 0


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A part of the energy: images of N radiographs and what to find in their S sides."""

    halves: Tensor  # (N, S, H, W)
    template: Template
    floor: Tensor  # (N, S), the deviation below which a patch fades into noise
    weight: float = 1.0


Terms = tuple[Term, ...]


def paper_terms(halves: Tensor, template: Template) -> Terms:
    """The paper's energy: one term."""
    return (Term(halves, template, ROUNDING * deviation(halves)),)


def robust_terms(halves: Tensor, template: Template) -> Terms:
    """Ours, for real films: low contrast counts against a patch, and fine structure counts too.

    The film itself leads to the joint from far away; its fine structure, in which the outline of
    the leg is no stronger than that of the bone, puts the margins in their place.
    """
    fine = normalize_local_contrast(halves)
    return (
        Term(halves, template, CONTRAST * deviation(halves), 1 - LOCAL_CONTRAST_WEIGHT),
        Term(
            fine, template.for_local_contrast(), CONTRAST * deviation(fine), LOCAL_CONTRAST_WEIGHT
        ),
    )


def deviation(images: Tensor) -> Tensor:
    """Standard deviation of each image (..., H, W): (...)."""
    return (images - images.mean((-2, -1), keepdim=True)).square().mean((-2, -1)).sqrt()


def energy(terms: Terms, theta: Tensor) -> Tensor:
    """How badly the patches at poses (N, S, 4) match, and how much the sides differ: (N,)."""
    return losses(terms, theta).sum(-1) + symmetry_penalty(theta)


def losses(terms: Terms, theta: Tensor) -> Tensor:
    """The mismatch of each side, (N, S), at poses (N, S, 4): L, or the weighted sum of several."""
    total = theta.new_zeros(theta.shape[:-1])
    for term in terms:
        height, width = term.halves.shape[-2:]
        matrices = pose_matrix(theta, term.template.aspect, height / width)
        patches = sample(term.halves, matrices, term.template.size)
        total = total + term.weight * one_sided_loss(patches, term.template, term.floor)
    return total


def one_sided_loss(patch: Tensor, template: Template, floor: Tensor | float = 0.0) -> Tensor:
    """L: mismatch of patches (..., H, W) with the template, blind to image negatives: (...)."""
    whole = correlation(patch, template.image, floor)
    red = correlation(patch[template.red], template.image[template.red], floor)
    green = correlation(patch[template.green], template.image[template.green], floor)

    def cost(sign: int) -> Tensor:  # of the two sub-windows the worse one counts
        return 1 - (sign * whole + minimum(sign * red, sign * green)) / 2

    return minimum(cost(+1), cost(-1))


def correlation(patch: Tensor, image: Tensor, floor: Tensor | float = 0.0) -> Tensor:
    """Normalised cross-correlation of patches (..., H, W) with an image (H, W): (...).

    A patch whose deviation is far below the floor has correlation 0.
    """
    patch = patch - patch.mean((-2, -1), keepdim=True)
    image = image - image.mean()
    noise = image.numel() * (floor * floor) + TINY
    length: Tensor = (patch.square().sum((-2, -1)) + noise).sqrt() * image.norm()
    return (patch * image).sum((-2, -1)) / length


def symmetry_penalty(theta: Tensor) -> Tensor:
    """L^reg: squared difference of scale and height between two sides (..., 2, 4); 0 for one."""
    if theta.shape[-2] == 1:
        return theta.new_zeros(theta.shape[:-2])
    left, right = theta.unbind(-2)
    return (left - right)[..., 0:3:2].square().sum(-1)
