"""ResNet18 without its classifier (He et al., CVPR 2016), under torchvision's parameter names."""

from typing import Final

import torch.nn.functional as F
from torch import Tensor, nn

WIDTH: Final = 64  # channels after the first convolution


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
    """The convolutional part of ResNet18, or of a narrower one: width is 64 in the original."""

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
