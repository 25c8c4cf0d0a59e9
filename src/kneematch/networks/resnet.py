"""ResNet18 without its classifier (He et al., CVPR 2016), under torchvision's parameter names."""

import torch.nn.functional as F
from torch import Tensor, nn


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
    """The convolutional part of ResNet18."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        for module in self.modules():
            # On the meta device there is nothing to draw, and normal_() would import torch._dynamo.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images (K, 3, H, W) to feature maps (K, 512, H / 32, W / 32)."""
        maps = F.relu(self.bn1(self.conv1(images)), inplace=True)
        maps = F.max_pool2d(maps, 3, stride=2, padding=1)
        maps = self.layer2(self.layer1(maps))
        features: Tensor = self.layer4(self.layer3(maps))
        return features
