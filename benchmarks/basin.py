"""Measure from how far the paper's refinement returns to a knee, on images of several sizes.

    python benchmarks/basin.py --films 16 [--real FOLDER] [--device cuda]

The fine template starts at the true pose, moved in a random direction by a share of the half's
width, and Adam descends on the paper's energy, whose images are 2 to 16 times smaller than the
halves. Columns: mean IoU at the start, and for every size the mean IoU at the end and the share of
knees whose IoU is then 0.75 at least.
"""

import torch

from films import benchmark_parser, halves_of, known, real_films, score, table, true_vectors
from kneematch.films.annotation import load_annotation
from kneematch.paper.pose import pose_from_vector, vector_from_pose
from kneematch.paper.problem import make_problem, pyramid
from kneematch.paper.sharpening import adam
from kneematch.paper.split import HALF_ASPECT
from kneematch.training.trainer import cut_templates
from replication import TESTED_FROM, rendered
from train import annotate_a_phantom

OFFSETS = (0.02, 0.05, 0.1)
SHRINKS = (16, 8, 4, 2)
STEPS = 150


def main() -> None:
    parser = benchmark_parser(__doc__ or "", films=16)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    seeds = range(TESTED_FROM, TESTED_FROM + args.films)
    sets = {"phantoms": ([rendered(seed) for seed in seeds], annotate_a_phantom("knee"))}
    if args.real:
        labelled = [
            film for film in known(real_films(args.real, side_margin=0.0)) if "leg" not in film.tags
        ]
        sets["real"] = labelled[: args.films], load_annotation(args.real / "template.json")
    for name, (films, annotation) in sets.items():
        template = cut_templates(annotation, args.device)[0].fine
        problem = make_problem(halves_of(films, args.device), template, paper=True)
        sizes, ratio = pyramid(problem, SHRINKS), problem.height_ratio
        template = template.to(torch.empty(0))
        true = pose_from_vector(true_vectors(films, template).float(), ratio)
        generator = torch.Generator().manual_seed(args.seed)
        for offset in OFFSETS:
            angle = 2 * torch.pi * torch.rand(true.shape[:2], generator=generator)
            moved = true.clone()
            moved[..., 1] += 2 * offset * angle.cos()  # a half is 2 wide
            moved[..., 2] += 2 * offset * angle.sin() / HALF_ASPECT
            start = vector_from_pose(moved, ratio).to(problem.halves)
            cells = [f"{score(films, template, moved).iou.mean():.2f}"]
            for shrink in SHRINKS:
                v = adam(sizes[shrink], start, steps=STEPS).v
                iou = score(films, template, pose_from_vector(v, ratio).cpu()).iou
                cells.append(f"{iou.mean():.2f}, {100 * (iou >= 0.75).double().mean():.0f} %")
            rows.append([f"{name}, moved by {100 * offset:.0f} %", *cells])
    ends = [f"{shrink} times smaller" for shrink in SHRINKS]
    table((f"{args.films} films each", "start", *ends), rows)


if __name__ == "__main__":
    main()
