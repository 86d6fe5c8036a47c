"""Parts of a study that another process can import."""

import torch

from trustgp_experiments.core.result import Setting


def drawn(setting: Setting, case: str, seed: int) -> dict:
    """Numbers that depend on the case and the seed only."""
    cases = {"toy": 3}
    generator = torch.Generator().manual_seed(seed)
    return {"case": case, "values": torch.randn(cases[case], generator=generator).tolist()}
