"""PyTorch: one replica, several ways to keep it in sync."""

from orca.backends.torch.backend import TorchBackend
from orca.backends.torch.sync import distributed_data_parallel

torch_distributed = TorchBackend("torch_distributed", distributed_data_parallel)

__all__ = ["TorchBackend", "torch_distributed"]
