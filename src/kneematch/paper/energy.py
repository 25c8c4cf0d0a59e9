"""The energy that solvers minimise: cross-correlation plus symmetry (paper, Sect. 4)."""

from dataclasses import dataclass
from typing import Final

from torch import Tensor, maximum, minimum

from kneematch.paper.pose import pose_matrix
from kneematch.paper.template import Template, normalize_local_contrast
from kneematch.sampling import sample

# Patches whose deviation is below this share of the half's own count as constant: up to rounding in
# the paper's energy, and up to noise, which correlates with anything, in the robust one.
ROUNDING: Final = 1e-5
CONTRAST: Final = 0.15
# Weight of the locally normalised images in the robust energy; the film itself has the rest.
LOCAL_CONTRAST_WEIGHT: Final = 0.5
TINY: Final = 1e-20  # keeps the derivative of a length finite at 0


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A part of the energy: images of N radiographs with S sides, and the template to find."""

    halves: Tensor  # (N, S, H, W)
    template: Template
    floor: Tensor  # (N, S), the deviation below which a patch fades into noise
    weight: float = 1.0

    def patches(self, theta: Tensor) -> Tensor:
        """Return the patches u(theta), (N, S, h, w), of the template's size at poses (N, S, 4)."""
        height, width = self.halves.shape[-2:]
        matrices = pose_matrix(theta, self.template.aspect, height / width)
        return sample(self.halves, matrices.to(self.halves), self.template.size)


Terms = tuple[Term, ...]


def paper_terms(halves: Tensor, template: Template) -> Terms:
    """Return the single term of the paper's energy for halves (N, S, H, W)."""
    return (Term(halves, template, ROUNDING * deviation(halves)),)


def robust_terms(halves: Tensor, template: Template) -> Terms:
    """Return the two terms of the robust energy, made for real films, for halves (N, S, H, W).

    Patches of low contrast cost more than in the paper's energy. The film itself guides the search
    from far away; its local contrast, in which the outline of the leg is no stronger than that of
    the bone, determines the margins.
    """
    fine = normalize_local_contrast(halves)
    return (
        Term(halves, template, CONTRAST * deviation(halves), 1 - LOCAL_CONTRAST_WEIGHT),
        Term(
            fine, template.for_local_contrast(), CONTRAST * deviation(fine), LOCAL_CONTRAST_WEIGHT
        ),
    )


def deviation(images: Tensor) -> Tensor:
    """Return the standard deviation (...) of each image (..., H, W)."""
    return (images - images.mean((-2, -1), keepdim=True)).square().mean((-2, -1)).sqrt()


def energy(terms: Terms, theta: Tensor) -> Tensor:
    """Return the energies (N,) of poses (N, S, 4): losses of the sides plus symmetry penalty."""
    return losses(terms, theta).sum(-1) + symmetry_penalty(theta)


def losses(terms: Terms, theta: Tensor) -> Tensor:
    """Return the loss (N, S) of each side at poses (N, S, 4): L, or a weighted sum over terms."""
    total = theta.new_zeros(theta.shape[:-1])
    for term in terms:
        loss = one_sided_loss(term.patches(theta), term.template, term.floor)
        total = total + term.weight * loss
    return total


def one_sided_loss(patch: Tensor, template: Template, floor: Tensor | float = 0.0) -> Tensor:
    """Return L (...), the mismatch of patches (..., H, W); an image negative matches as well."""
    return minimum(*polarity_losses(patch, template, floor))


def polarity_losses(
    patch: Tensor, template: Template, floor: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the mismatches (...) of patches (..., H, W) and of their negatives."""
    whole = correlation(patch, template.image, floor)
    red = correlation(patch[template.red], template.image[template.red], floor)
    green = correlation(patch[template.green], template.image[template.green], floor)
    # The worse of the two windows counts.
    return 1 - (whole + minimum(red, green)) / 2, 1 + (whole + maximum(red, green)) / 2


def correlation(patch: Tensor, image: Tensor, floor: Tensor | float = 0.0) -> Tensor:
    """Return the normalised cross-correlations (...) of patches (..., H, W) with an image (H, W).

    A patch whose deviation is far below the floor has correlation 0.
    """
    patch = patch - patch.mean((-2, -1), keepdim=True)
    image = image - image.mean()
    noise = image.numel() * (floor * floor) + TINY
    length: Tensor = (patch.square().sum((-2, -1)) + noise).sqrt() * image.norm()
    return (patch * image).sum((-2, -1)) / length


def symmetry_penalty(theta: Tensor) -> Tensor:
    """Return L^reg (...), the squared differences of scale and height of two sides (..., 2, 4).

    It is 0 for films of one side, (..., 1, 4).
    """
    if theta.shape[-2] == 1:
        return theta.new_zeros(theta.shape[:-2])
    left, right = theta.unbind(-2)
    return (left - right)[..., 0:3:2].square().sum(-1)
