"""G(.; phi): the network that predicts the pose of the template (paper, Sect. 5)."""

from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kneematch.paper.pose import pose_matrix
from kneematch.sampling import resize, sample

INPUT: Final = (224, 224)  # for which ResNet18 returns the paper's maps of 7 x 7
OVERSAMPLING: Final = 2  # a crop of a wide image is sampled at this many times INPUT, then reduced
WIDE: Final = 400  # pixels; crops of narrower images are sampled directly
RANGE: Final = 6.0  # outputs lie in (-3, 3)
EPSILON: Final = 1e-3  # added to the deviation of an image, for black images
WIDTH: Final = 64  # channels after ResNet18's first convolution

Network = Callable[[Tensor], Tensor]  # images (N, S, 224, 224) to vectors v (N, S, 4)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut around them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        downsample = None
        if stride != 1:
            projection = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            downsample = nn.Sequential(projection, nn.BatchNorm2d(channels))
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (K, channels_in, H, W) to (K, channels, H / stride, W / stride)."""
        shortcut = maps if self.downsample is None else self.downsample(maps)
        maps = F.relu(self.bn1(self.conv1(maps)), inplace=True)
        return F.relu(self.bn2(self.conv2(maps)) + shortcut, inplace=True)


class ResNet18(nn.Module):
    """The convolutional part of ResNet18 (He et al., CVPR 2016), with torchvision's names.

    The width is 64 in the original, and may be smaller.
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _layer(width, width, 1)
        self.layer2 = _layer(width, 2 * width, 2)
        self.layer3 = _layer(2 * width, 4 * width, 2)
        self.layer4 = _layer(4 * width, 8 * width, 2)
        for module in self.modules():
            # On the meta device there is nothing to draw, and normal_() would import torch._dynamo.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images (K, 3, H, W) to feature maps (K, 8 width, H / 32, W / 32)."""
        maps = F.relu(self.bn1(self.conv1(images)), inplace=True)
        maps = F.max_pool2d(maps, 3, stride=2, padding=1)
        maps = self.layer2(self.layer1(maps))
        features: Tensor = self.layer4(self.layer3(maps))
        return features


def _layer(channels_in: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(channels_in, channels, stride), BasicBlock(channels, channels, 1)
    )


class PoseNetwork(nn.Module):
    """Predict the vector v of the template in an image; the left half of a film is mirrored."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.backbone: nn.Module = ResNet18(width)
        self.reduce = nn.Sequential(
            nn.Conv2d(8 * width, 128, 1), nn.ReLU(), nn.Conv2d(128, 32, 1), nn.ReLU()
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
        """Return vectors v (K, 4) of the backbone's feature maps (K, 8 width, 7, 7)."""
        flat = F.normalize(self.reduce(maps), dim=1).flatten(1)  # (K, 32 * 7 * 7)
        return RANGE * (torch.sigmoid(self.regress(flat).float()) - 0.5)


def standardize(images: Tensor) -> Tensor:
    """Return images (..., H, W) with mean 0 and deviation 1, since their exposure is arbitrary."""
    deviation, mean = torch.std_mean(images, dim=(-2, -1), keepdim=True, correction=0)
    return (images - mean) / (deviation + EPSILON)


def network_input(images: Tensor, crop_poses: Tensor | None = None, aspect: float = 1.0) -> Tensor:
    """Return what the network sees of images (N, S, H, W): (N, S, 224, 224).

    Args:
        images: (N, S, H, W).
        crop_poses: (N, S, 4), the poses of crops of the images; None shows all of them.
        aspect: height over width of the crops, which are squeezed into the network's square.
    """
    image_aspect = images.shape[-2] / images.shape[-1]
    if crop_poses is None:
        crop_poses = images.new_tensor([1, 0, 0, 0]).expand(*images.shape[:2], 4)
        aspect = image_aspect
    matrices = pose_matrix(crop_poses, aspect, image_aspect).to(images)
    if images.shape[-1] < WIDE:
        return sample(images, matrices, INPUT)
    height, width = INPUT
    return resize(sample(images, matrices, (OVERSAMPLING * height, OVERSAMPLING * width)), INPUT)
