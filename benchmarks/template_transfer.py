"""Compare ways to use a template of one's own without training.

    python benchmarks/template_transfer.py --real FOLDER

Rows: the built-in networks' poses transferred to the new template, alone, refined near these poses
(anchored refinement, as in the method neural+sharpen) and refined freely (Gauss-Newton); the
exhaustive search; and a mean template, averaged over the knees found, for one and two rounds, which
has less individual anatomy.
Columns: the scores of films.py and the paper's loss of the row's own template, sum of both sides.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from films import (
    SCORE_COLUMNS,
    benchmark_parser,
    evaluate_poses,
    halves_of,
    real_films,
    score,
    table,
)
from kneematch.films.annotation import load_annotation
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.template_transfer import transfer_template
from kneematch.paper.pose import (
    compose_pose,
    pose_from_vector,
    pose_matrix,
    relative_pose,
    vector_from_pose,
)
from kneematch.paper.problem import make_problem
from kneematch.paper.split import HALF_ASPECT
from kneematch.paper.template import Template, normalize_local_contrast
from kneematch.sampling import sample
from kneematch.search.anchored_refinement import LEVELS, refine_anchored
from kneematch.search.gauss_newton import Level
from kneematch.training.dataset import Films, FilmsInMemory
from kneematch.training.distributed import Group
from kneematch.training.pseudo_labels import find_poses
from kneematch.training.trainer import cut_templates

ROUNDS = 2  # of averaging
AVERAGED = 0.5  # fraction of the patches, the best matches, that enter the mean
FILMS_AT_ONCE = 16
FULL_SIZE = Level(1, 3, 0.01)  # the last level of the search for a drift, which is small
EPSILON = 1e-6  # added to the standard deviation of a patch


@torch.no_grad()
def main() -> None:
    args = benchmark_parser(__doc__ or "", films=0).parse_args()
    torch.set_num_threads(args.threads)
    films = real_films(args.real)
    halves = halves_of(films, args.device)
    memory, group = FilmsInMemory(halves), Group()
    drawn, half = cut_templates(load_annotation(args.real / "template.json"), args.device)
    networks = transfer_template(
        load_model(builtin_model()).networks(args.device), half, drawn.fine_pose
    )
    find = partial(find_poses, memory, networks=networks, group=group)
    fine = drawn.fine
    alone, near = networks.poses(halves), find(fine)
    problem = make_problem(halves, fine)
    start = vector_from_pose(alone, problem.height_ratio)
    lowest = pose_from_vector(refine_anchored(problem, start, trust=0.0).v, problem.height_ratio)
    ways = {
        "transferred": (fine, alone),
        "transferred, anchored refinement (neural+sharpen)": (fine, near),
        "transferred, Gauss-Newton": (fine, lowest),
        "search": (fine, find_poses(memory, fine, None, group)),
    }
    poses = near
    for count in range(1, ROUNDS + 1):
        mean = mean_template(memory, fine, poses)
        poses = undo_drift(mean, half, drawn.fine_pose, find(mean))
        fine = mean_template(memory, mean, poses)
        ways[f"anchored refinement, mean template, round {count}"] = (fine, poses)

    def row(name: str, template: object, theta: Tensor) -> list[str]:
        loss = evaluate_poses(films, template, theta.cpu(), 0.0).loss.sum(-1).mean()  # type: ignore[arg-type]
        return [name, *score(films, drawn.fine, theta.cpu()).row(films), f"{loss:.4f}"]

    table(
        ("template", *SCORE_COLUMNS, "left + right loss of the row's template"),
        [row(name, template, theta) for name, (template, theta) in ways.items()],
    )


@torch.no_grad()
def mean_template(films: Films, template: Template, poses: Tensor) -> Template:
    """Return the mean of the best-matching patches at poses (N, 2, 4), with the same windows."""
    batches = torch.split(torch.arange(len(films)), FILMS_AT_ONCE)
    standard = _standardise(template.image)
    correlation = torch.cat(
        [(_patches(films, template, poses, rows)[0] * standard).mean((-2, -1)) for rows in batches]
    )  # (N, 2)
    least = correlation.abs().flatten().quantile(1 - AVERAGED)
    weights = correlation.sign() * (correlation.abs() >= least)  # inverts negatives
    sums = torch.zeros_like(template.image), torch.zeros_like(template.image)
    for rows in batches:
        weight = weights[rows.to(weights.device)][..., None, None]
        for total, patches in zip(sums, _patches(films, template, poses, rows), strict=True):
            total += (weight * patches).sum((0, 1))
    image, contrast = (total / weights.abs().sum() for total in sums)
    return replace(template, image=image, local_contrast=contrast)


@torch.no_grad()
def undo_drift(template: Template, half: Tensor, annotated: Tensor, poses: Tensor) -> Tensor:
    """Correct the poses of a mean template, whose frame drifts away from the annotated boxes.

    The drift is measured on the annotated knee, by finding the mean template there.

    Args:
        template: the mean template.
        half: (H, W), the half image that was annotated.
        annotated: (4,), the pose of the annotated box in it.
        poses: (N, 2, 4), where the mean template was found.
    """
    problem = make_problem(half[None, None], template)
    start = vector_from_pose(annotated.to(half)[None, None], problem.height_ratio)
    v = refine_anchored(problem, start, trust=0.0, levels=(*LEVELS, FULL_SIZE)).v[0, 0]
    found = pose_from_vector(v, problem.height_ratio)
    drift = relative_pose(found, annotated.to(found), template.aspect, HALF_ASPECT)
    return compose_pose(poses, drift.expand_as(poses), template.aspect, HALF_ASPECT)


def _patches(
    films: Films, template: Template, poses: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Return standardised patches (K, 2, h, w) of some films (K,), and of their local contrast."""
    halves = films.halves(rows)
    theta = poses[rows.to(poses.device)]
    matrices = pose_matrix(theta, template.aspect, HALF_ASPECT).to(halves)
    pictures = halves, normalize_local_contrast(halves)
    image, contrast = (_standardise(sample(each, matrices, template.size)) for each in pictures)
    return image, contrast


def _standardise(patches: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(patches, dim=(-2, -1), keepdim=True)
    return (patches - mean) / (deviation + EPSILON)


if __name__ == "__main__":
    main()
