"""APOLLO by its authors' package, with the projections that plimsoll draws: functions of (seed, number of the projection,
name of the parameter, matrix, element).
"""

import apollo_torch
import numpy as np
import torch
from apollo_torch.random_projector import GradientProjector
from probes import normals


class SeededProjector(GradientProjector):
    """Draws projection after projection of one parameter."""

    def __init__(self, rank: int, gap: int, seed: int, stream: int, matrix: int = 0):
        super().__init__(rank, update_proj_gap=gap)
        self.drawn, self.place = 0, (seed, stream, matrix)

    def get_orthogonal_matrix(self, weights, rank, type, seed):
        run_seed, stream, matrix = self.place
        shorter = min(weights.shape)
        numbers = normals(run_seed, self.drawn, matrix, stream, np.arange(rank * shorter))
        self.drawn += 1
        deviation = np.float32(1 / np.sqrt(np.float64(rank)))
        lines = torch.from_numpy(numbers * deviation).to(weights.dtype).reshape(rank, shorter)
        return lines.T if type == "left" else lines


def apollo(weight: torch.nn.Parameter, form: dict, rates: dict, seed: int, stream: int) -> torch.optim.Optimizer:
    """The optimizer of one matrix; `form` has `rank`, `update_proj_gap`, `scale` and `scale_type`."""
    group = {"params": [weight], "proj": "random", "proj_type": "std", **form}
    optimizer = apollo_torch.APOLLOAdamW([group], **rates)
    optimizer.state[weight]["projector"] = SeededProjector(form["rank"], form["update_proj_gap"], seed, stream)
    return optimizer
