"""Measure landmarks that are found from one drawing, before and after learning without labels.

    python lab/landmarks.py FOLDER [--template head-126] [--mm 0.3] [--train]

FOLDER has films NAME.jpg and landmarks.csv (id, x1, y1, x2, y2, ...: pixels). All landmarks are
drawn on one film, with a box around them, and looked for on the others. Prints the mean error, the
share of errors below 4 mm and the CPU time a film. --train takes every second film, without its
labels, for the training, and measures on the others.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from films import read_rows
from kneematch import Detector, read, train
from kneematch.films.annotation import Annotation, annotate_part, save_annotation

MARGIN = 0.15  # added around the landmarks' box, as a share of its longer side


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--template", default="head-126", help="film that is drawn on")
    parser.add_argument("--mm", type=float, default=0.3, help="pixel spacing")
    parser.add_argument("--train", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    read = read_rows(args.folder / "landmarks.csv")
    rows = {row.pop("id"): [float(v) for v in row.values()] for row in read}
    labels = {name: np.array(values).reshape(-1, 2) for name, values in rows.items()}
    paths = {name: args.folder / f"{name}.jpg" for name in labels}
    drawn = drawing(paths[args.template], labels.pop(args.template))
    names, model = list(labels), None
    with TemporaryDirectory() as folder:
        if args.train:
            films, names = names[::2], names[1::2]
            template, model = Path(folder) / "template.json", Path(folder) / "model.safetensors"
            save_annotation(drawn, template)
            begun = time.process_time()
            train([str(paths[name]) for name in films], template, model)
            print(f"trained on {len(films)} films in {time.process_time() - begun:.0f} s")
        detector = Detector.load(model, template=drawn, device="cpu")
    begun, errors = time.process_time(), []
    for name in names:
        (area,) = detector.detect(paths[name])
        errors.append(np.linalg.norm(np.array([*area.landmarks.values()]) - labels[name], axis=1))
    seconds, mm = (time.process_time() - begun) / len(names), args.mm * np.array(errors)
    print(f"{len(names)} films: mean error {mm.mean():.2f} mm, below 4 mm {(mm < 4).mean():.1%}, ")
    print(f"{seconds:.2f} s of CPU time a film; errors by landmark: {mm.mean(0).round(1).tolist()}")


def drawing(film: Path, points: NDArray[np.float64]) -> Annotation:
    """Return all landmarks of a film with a box around them."""
    margin = MARGIN * np.ptp(points, axis=0).max()
    (x0, y0), (x1, y1) = (points.min(0) - margin).tolist(), (points.max(0) + margin).tolist()
    named = {f"p{k}": (float(x), float(y)) for k, (x, y) in enumerate(points, start=1)}
    return annotate_part(film, "one", (x0, y0, x1, y1), named, read(film).size[1] / 2)


if __name__ == "__main__":
    main()
