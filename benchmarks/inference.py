"""Compare the networks in eager float32 with their CPU inference: time, and how far knees move.

    python benchmarks/inference.py --films 60 [--real FOLDER] [--model MODEL] [--threads 2]

First table: wall-clock and CPU time per film of each network and of both with the cropping of their
inputs. The two variants take turns and the least time counts, since other programs can only add to
it. Second table: the scores of films.py, and how far the fast variant moves the margins, in percent
of the plateau's width.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from films import (
    SCORE_COLUMNS,
    Film,
    benchmark_parser,
    film_sets,
    halves_of,
    score,
    table,
)
from kneematch.models.cpu_inference import ByteNetwork
from kneematch.models.model_file import builtin_model, load_model
from kneematch.models.two_stage import TwoStageNetworks
from kneematch.paper.network import INPUT, network_from_weights
from kneematch.paper.pose import pose_matrix
from kneematch.paper.split import HALF_SIZE
from kneematch.paper.template import Template
from kneematch.sampling import transform


def least(methods: Mapping[str, Callable[[Tensor], Tensor]], given: Tensor, turns: int) -> Tensor:
    """Return the least milliseconds (method, wall and CPU), the methods taking turns."""
    best = torch.full((len(methods), 2), torch.inf)
    for _ in range(turns):
        for k, method in enumerate(methods.values()):
            wall, cpu = time.perf_counter(), time.process_time()
            method(given)
            taken = torch.tensor([time.perf_counter() - wall, time.process_time() - cpu])
            best[k] = best[k].minimum(1000 * taken)
    return best


def speed(
    eager: TwoStageNetworks, quick: TwoStageNetworks, films: int, turns: int
) -> list[list[str]]:
    """Return a row for each network and one for both with the cropping of their inputs."""
    views, halves = torch.rand(films, 2, *INPUT), torch.rand(films, 2, *HALF_SIZE)
    rows = []
    for name, parts, given in (
        ("coarse", (eager.coarse, quick.coarse), views),
        ("fine", (eager.fine, quick.fine), views),
        ("both, with cropping", (eager.poses, quick.poses), halves),
    ):
        taken = least(dict(zip(("eager", "fast"), parts, strict=True)), given, turns) / films
        ratios = (taken[0] / taken[1]).tolist()
        figures = [f"{value:.1f}" for value in [*taken.T.flatten().tolist(), *ratios]]
        rows.append([name, str(films), *figures])
    return rows


def poses(networks: TwoStageNetworks, films: Sequence[Film], batch: int) -> Tensor:
    """Return the poses (N, 2, 4) of films."""
    some = [films[first : first + batch] for first in range(0, len(films), batch)]
    return torch.cat([networks.poses(halves_of(part, "cpu")) for part in some])


def shift(one: Tensor, other: Tensor, template: Template) -> Tensor:
    """Return the distances (N, 2, 2) of the margins at two sets of poses (N, 2, 4), in %."""
    size = torch.tensor([HALF_SIZE[1], HALF_SIZE[0]]).double() / 2  # of [-1, 1]^2, (x, y)
    points = [template.landmarks[name] for name in ("plateau_medial", "plateau_lateral")]
    marks = torch.tensor(points, dtype=torch.float64)
    aspect = HALF_SIZE[0] / HALF_SIZE[1]
    here, there = (
        size * transform(pose_matrix(theta.double(), template.aspect, aspect), marks)
        for theta in (one, other)
    )
    width = (here[..., 0, :] - here[..., 1, :]).norm(dim=-1)
    return 100 * (here - there).norm(dim=-1) / width[..., None]


@torch.no_grad()
def main() -> None:
    parser = benchmark_parser(__doc__, films=60)
    parser.add_argument("--model", type=Path, default=builtin_model())
    parser.add_argument("--turns", type=int, default=8, help="runs of each variant")
    parser.set_defaults(threads=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(args.model)
    aspects = model.coarse_template.aspect, model.fine_template.aspect
    eager = TwoStageNetworks(
        network_from_weights(model.coarse), network_from_weights(model.fine), *aspects
    )
    quick = model.networks()
    arithmetic = "8 bits" if isinstance(quick.fine, ByteNetwork) else "float32"
    kinds = ("eager wall", "fast wall", "eager CPU", "fast CPU")
    columns = (*(f"{kind}, ms per film" for kind in kinds), "times faster, wall", "CPU")
    rows = [row for films in (1, args.batch) for row in speed(eager, quick, films, args.turns)]
    table((f"{args.threads} threads, {arithmetic}", "films per batch", *columns), rows)

    rows = []
    for title, films in film_sets(args).items():
        theta = poses(eager, films, args.batch), poses(quick, films, args.batch)
        known = torch.stack([film.margins for film in films]).isfinite().flatten(2).all(2)
        moved = shift(*theta, model.fine_template)[known]
        spread = [*moved.quantile(torch.tensor([0.5, 0.95]).double()).tolist(), float(moved.max())]
        for name, at in zip(("eager", "fast"), theta, strict=True):
            moves = [f"{value:.3f}" for value in spread] if name == "fast" else ["-"] * 3
            rows.append(
                [f"{title}, {name}", *score(films, model.fine_template, at).row(films), *moves]
            )
    table(("films", *SCORE_COLUMNS, "move, median %", "95th percentile %", "largest %"), rows)


if __name__ == "__main__":
    main()
