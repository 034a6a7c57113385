import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """
    A convolution whose channels are scaled, then a clamp and a pooling.
    """

    def __init__(self, in_channels, out_channels, kernel_size, scale_shape, clamp_max):
        super(Model, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        self.norm = nn.BatchNorm2d(out_channels)
        self.scale = nn.Parameter(torch.randn(scale_shape))
        self.clamp_max = clamp_max

    def forward(self, x):
        x = self.norm(self.conv(x))
        x = x * self.scale
        x = torch.clamp(x, max=self.clamp_max)
        return F.avg_pool2d(x, 2)


batch_size = 4
in_channels, out_channels = 3, 8
height, width = 16, 16
kernel_size = 3
scale_shape = (out_channels, 1, 1)
clamp_max = 1.5


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, scale_shape, clamp_max]
