"""Compare what a GPU finds in batches of several sizes, and what a CPU finds, in film pixels.

    python benchmarks/gpu_batches.py [--films N]

Columns: the largest distance of an area's corner from where it is in batches of 16, over the knees
of phantoms of 2048 x 2494 pixels (median and largest), the same in percent of the area's width, and
how many `review` flags differ.
"""

import argparse

import numpy as np
from kneephantoms.phantom import phantom

from films import table
from kneematch.films.radiograph import Radiograph
from kneematch.knee.detection import Detection
from kneematch.knee.detector import Detector

SIZE = (2048, 2494)
BATCH = 16


def detect(films: list[Radiograph], device: str, batch_size: int) -> list[Detection]:
    """Return the knees of all films."""
    detector = Detector.load(device=device, batch_size=batch_size)
    return [knee for result in detector.detect_each(films) for knee in result.detections]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--films", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    films = [phantom(seed, size=SIZE).radiograph for seed in range(args.films)]
    expected = detect(films, args.device, BATCH)
    cells = []
    for device, size in ((args.device, 1), (args.device, 64), ("cpu", 1)):
        pairs = list(zip(detect(films, device, size), expected, strict=True))
        far = np.array([np.abs(one.corners - other.corners).max() for one, other in pairs])
        share = 100 * far / [other.width_px for _, other in pairs]
        flags = sum(one.review != other.review for one, other in pairs)
        figures = [np.median(far), far.max(), np.median(share), share.max()]
        cells.append([f"{device}, {size}", *(f"{value:.4f}" for value in figures), str(flags)])
    print(f"{len(expected)} knees.\n")
    table(["device, batch", "median, px", "largest, px", "median, %", "largest, %", "flags"], cells)


if __name__ == "__main__":
    main()
