"""G(.; phi): the network that says where the template lies (paper, Sect. 5)."""

from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.geometry.pose import pose_matrix
from kneematch.geometry.sampling import resize, sample
from kneematch.networks.resnet import ResNet18

INPUT: Final = (224, 224)  # of which ResNet18 makes the paper's maps of 7 x 7
OVERSAMPLING: Final = 2  # of a view, before it is reduced to the network's input
RANGE: Final = 6.0  # of an output, which lies in (-3, 3)
DARK: Final = 1e-3  # added to the deviation of an image, for one that is black


class PoseNetwork(nn.Module):
    """An image to the vector v of the patch that looks like the template; one for both sides."""

    def __init__(self, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = ResNet18() if backbone is None else backbone
        self.reduce = nn.Sequential(
            nn.Conv2d(512, 128, 1), nn.ReLU(), nn.Conv2d(128, 32, 1), nn.ReLU()
        )
        self.regress = nn.Sequential(
            nn.Linear(32 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, 32),
            nn.ReLU(),
            nn.Linear(32, 4),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return vectors v (..., 4) of images (..., 224, 224)."""
        grey = standardize(images).reshape(-1, 1, *images.shape[-2:])
        v = self.head(self.backbone(grey.expand(-1, 3, -1, -1)))
        return v.reshape(*images.shape[:-2], 4)

    def head(self, maps: Tensor) -> Tensor:
        """Return vectors v (K, 4) of the backbone's feature maps (K, 512, 7, 7)."""
        flat = F.normalize(self.reduce(maps), dim=1).flatten(1)  # (K, 32 * 7 * 7)
        return RANGE * (torch.sigmoid(self.regress(flat).float()) - 0.5)


def network_from_weights(weights: Mapping[str, Tensor]) -> PoseNetwork:
    """Return a network with a copy of the given weights, in evaluation mode."""
    network = _uninitialized().eval()
    copies = {name: tensor.clone() for name, tensor in weights.items()}
    network.load_state_dict(copies, assign=True)
    return network


def weight_shapes() -> dict[str, torch.Size]:
    """Return the names and shapes of a PoseNetwork's weights."""
    return {name: tensor.shape for name, tensor in _uninitialized().state_dict().items()}


def _uninitialized() -> PoseNetwork:
    with torch.device("meta"):
        return PoseNetwork()


def standardize(images: Tensor) -> Tensor:
    """Images (..., H, W) of mean 0 and deviation 1, as ImageNet's are that ResNet18 was made for.

    An image at a time, and not with ImageNet's own numbers: the exposure of a film is arbitrary.
    """
    deviation, mean = torch.std_mean(images, dim=(-2, -1), keepdim=True, correction=0)
    return (images - mean) / (deviation + DARK)


def crop_views(halves: Tensor, frames: Tensor, aspect: float) -> Tensor:
    """What the network sees of halves (N, S, H, W) in frames (N, S, 4): (N, S, 224, 224).

    The frames' views have the given height over width, of which the network's square knows nothing.
    """
    matrices = pose_matrix(frames, aspect, halves.shape[-2] / halves.shape[-1])
    height, width = INPUT
    large = OVERSAMPLING * height, OVERSAMPLING * width
    return resize(sample(halves, matrices.to(halves), large), INPUT)


def full_frames(halves: Tensor) -> Tensor:
    """The frames (N, S, 4) that hold all of halves (N, S, H, W)."""
    return F.pad(halves.new_ones(*halves.shape[:2], 1), (0, 3))  # of scale 1
