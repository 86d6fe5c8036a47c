"""Small detectors of many families with random weights, for pictures of 64 pixels."""

import torch
from torch import Tensor, nn

SIDES = ("encoder", "decoder")
LAYERS = {f"{side}_{name}": n for side in SIDES for name, n in (("ffn_dim", 32), ("attention_heads", 2))}
SIZES = {**LAYERS, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 8, "num_labels": 2}


def resnet(*stages: str):
    from transformers import ResNetConfig

    count = int(stages[-1][-1])
    widths = [8, 16, 16, 16][:count]
    return ResNetConfig(embedding_size=8, hidden_sizes=widths, depths=[1] * count, out_features=list(stages))


def dab_detr():
    from transformers import DabDetrConfig, DabDetrForObjectDetection

    return DabDetrForObjectDetection(DabDetrConfig(backbone_config=resnet("stage2"), hidden_size=32, **SIZES))


def table_transformer():
    from transformers import TableTransformerConfig, TableTransformerForObjectDetection

    own = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "d_model": 32}
    config = TableTransformerConfig(backbone_config=resnet("stage2"), **own, **SIZES)
    return TableTransformerForObjectDetection(config)


def deformable_detr(**options: bool):
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection

    own = {"d_model": 32, "num_feature_levels": 2, "two_stage_num_proposals": 8}
    config = DeformableDetrConfig(backbone_config=resnet("stage2", "stage3"), **own, **options, **SIZES)
    return DeformableDetrForObjectDetection(config)


STAGES = ["stage2", "stage3", "stage4"]
CHANNELS = {"encoder_in_channels": [16] * 3, "decoder_in_channels": [32] * 3, "feat_strides": [8, 16, 32]}
SCALES = {**CHANNELS, "encoder_hidden_dim": 32, "d_model": 32, "num_denoising": 0, "eval_size": None}


def rt_detr(version: int = 1):
    import transformers
    from transformers import RTDetrResNetConfig

    name = "RTDetr" if version == 1 else "RTDetrV2"
    build, config = (getattr(transformers, f"{name}{end}") for end in ("ForObjectDetection", "Config"))
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4}
    backbone = RTDetrResNetConfig(**sizes, out_features=STAGES, layer_type="basic")
    return build(config(backbone_config=backbone, **SCALES, **SIZES))


def d_fine():
    from transformers import DFineConfig, DFineForObjectDetection, HGNetV2Config

    widths = {"hidden_sizes": 16, "depths": 1, "stage_mid_channels": 8, "stage_out_channels": 16}
    widths |= {"stage_num_blocks": 1, "stage_numb_of_layers": 1, "stage_light_block": False}
    same = {name: [n] * 4 for name, n in (widths | {"stage_kernel_size": 3}).items()}
    other = {"stage_in_channels": [8, 16, 16, 16], "stage_downsample": [False, True, True, True]}
    other |= {"embedding_size": 8, "stem_channels": [3, 8, 8]}
    backbone = HGNetV2Config(out_features=STAGES, **same, **other)
    config = DFineConfig(backbone_config=backbone, decoder_n_points=[2] * 3, **SCALES, **SIZES)
    return DFineForObjectDetection(config)


def yolos():
    from transformers import YolosConfig, YolosForObjectDetection

    layers = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"image_size": [64, 64], "patch_size": 16, "num_detection_tokens": 8}
    return YolosForObjectDetection(YolosConfig(**layers, **tokens, num_labels=2))


class GridDetector(nn.Module):
    """Each cell of two maps is a query: a small YOLO."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.Conv2d(8, 16, 1), nn.ReLU())
        self.fine, self.coarse = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, 2, 1)
        self.head = nn.Conv2d(16, 2 + 4, 1)

    def forward(self, pictures: Tensor) -> dict[str, Tensor]:
        features = self.body(pictures)
        maps = [self.head(part(features)).flatten(2).transpose(1, 2) for part in (self.fine, self.coarse)]
        outputs = torch.cat(maps, dim=1)
        return {"logits": outputs[..., :2], "pred_boxes": outputs[..., 2:].sigmoid()}


ZOO = {
    "DAB-DETR": dab_detr,
    "Table Transformer": table_transformer,
    "Deformable DETR": deformable_detr,
    "Deformable DETR, refined": lambda: deformable_detr(with_box_refine=True),
    "Deformable DETR, two stages": lambda: deformable_detr(with_box_refine=True, two_stage=True),
    "RT-DETR": rt_detr,
    "RT-DETR v2": lambda: rt_detr(2),
    "D-FINE": d_fine,
    "YOLOS": yolos,
}
