"""A template of the user's own without training: carried by the networks in the box, or searched.

    python benchmarks/carried.py --real FOLDER

Also what lowering the energy further does to the place (`nearby` trusts the networks,
`gauss_newton` does not), and what a mean of the knees that were found does as a template.
"""

from functools import partial

import torch
from torch import Tensor

from films import SCORE_COLUMNS, halves_of, judged, options, real_films, score, table
from kneematch.geometry.pose import pose_from_vector, vector_from_pose
from kneematch.matching.annotation import load_annotation
from kneematch.networks.model_file import load_model, shipped_model
from kneematch.networks.template_transfer import carried
from kneematch.solvers.gauss_newton import gauss_newton
from kneematch.solvers.problem import problem
from kneematch.training.distributed import Group
from kneematch.training.mean_template import as_drawn, mean_template
from kneematch.training.phase_data import InMemory
from kneematch.training.pseudo_labels import searched, told
from kneematch.training.session import draw

ROUNDS = 2  # of the mean template


@torch.no_grad()
def main() -> None:
    chosen = options(__doc__ or "", films=0).parse_args()
    torch.set_num_threads(chosen.threads)
    films = real_films(chosen.real)
    halves = halves_of(films, chosen.device)
    memory, group = InMemory(halves), Group()
    drawn, half = draw(load_annotation(chosen.real / "template.json"), chosen.device)
    networks = carried(load_model(shipped_model()).networks(chosen.device), half, drawn.fine_pose)
    find = partial(told, memory, networks=networks, group=group)
    fine = drawn.fine
    alone, near = networks.poses(halves), find(fine)
    asked = problem(halves, fine)
    start = vector_from_pose(alone, asked.height_ratio)
    lowest = pose_from_vector(gauss_newton(asked, start).v, asked.height_ratio)
    ways = {
        "carried": (fine, alone),
        "carried, then nearby (neural+sharpen)": (fine, near),
        "carried, then gauss_newton": (fine, lowest),
        "search": (fine, searched(memory, fine, group=group)),
    }
    poses = near
    for count in range(1, ROUNDS + 1):
        mean = mean_template(memory, fine, poses)
        poses = as_drawn(mean, half, drawn.fine_pose, find(mean))
        fine = mean_template(memory, mean, poses)
        ways[f"nearby, mean template, {count}"] = (fine, poses)

    def row(name: str, template: object, theta: Tensor) -> list[str]:
        loss = judged(films, template, theta.cpu(), 0.0).loss.sum(-1).mean()  # type: ignore[arg-type]
        return [name, *score(films, drawn.fine, theta.cpu()).row(films), f"{loss:.4f}"]

    table(
        ("template", *SCORE_COLUMNS, "left + right loss, of the template"),
        [row(name, template, theta) for name, (template, theta) in ways.items()],
    )


if __name__ == "__main__":
    main()
