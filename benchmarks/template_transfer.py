"""Compare ways to use a template of one's own without training.

    python benchmarks/template_transfer.py --real FOLDER

Rows: the built-in networks' poses transferred to the new template, alone, refined near these poses
(anchored refinement, as in the method neural+sharpen) and refined freely (Gauss-Newton); the
exhaustive search; and a mean template, averaged over the knees found, for one and two rounds.
Columns: the scores of films.py and the paper's loss of the row's own template, sum of both sides.
"""

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
from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.matching.annotation import load_annotation
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.networks.template_transfer import transfer_template
from kneematch.solvers.anchored_refinement import refine_anchored
from kneematch.solvers.problem import make_problem
from kneematch.training.dataset import FilmsInMemory
from kneematch.training.distributed import Group
from kneematch.training.pseudo_labels import find_poses, mean_template, undo_drift
from kneematch.training.trainer import cut_templates

ROUNDS = 2  # of averaging


@torch.no_grad()
def main() -> None:
    args = benchmark_parser(__doc__ or "", films=0).parse_args()
    torch.set_num_threads(args.threads)
    films = real_films(args.real)
    halves = halves_of(films, args.device)
    memory, group = FilmsInMemory(halves), Group()
    drawn, half = cut_templates(load_annotation(args.real / "template.json"), args.device)
    networks = transfer_template(
        load_model(shipped_model()).networks(args.device), half, drawn.fine_pose
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


if __name__ == "__main__":
    main()
