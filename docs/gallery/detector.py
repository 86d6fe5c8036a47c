"""A detector with a blind camera

A detector finds a rover and a lander on a planet. It gets an error bar for each edge of its boxes, and a
monitor checks every frame: haze, an object of another type, a dark lens, a camera that swaps red and blue.
"""

# %%
# Detector and rendered images are part of `trustgp_experiments`. This page fits to 24 images to be fast:
# pass all that your detector was trained on.
import torch

import trustgp
from trustgp_experiments.datasets.scenes import CLASSES, scenes
from trustgp_experiments.training.detector_network import pixels, trained


def pictures(n, first=0):
    drawn = scenes(n, first=first)
    targets = list(map(trustgp.BoxTargets, drawn.boxes, drawn.labels))
    return pixels(drawn.images), targets  # boxes: left, top, right, bottom in pixels


model = trustgp.detection.fit(
    trained("scenes"), pictures(24), validation=pictures(24, first=24), progress=False
)
model.threshold(false_alarm=0.03)

# %%
# **Each edge** has a standard deviation in pixels.
(found,) = model.predict(pictures(1, first=60)[0])
for box, std, label in zip(found.boxes, found.std, found.labels, strict=True):
    print(
        CLASSES[label], "at", box.round().int().tolist(), "±", [round(s, 1) for s in std.tolist()], "pixels"
    )

# %%
# **Six frames**, with the monitor's verdict. Bands are the 95 % intervals of the edges, colours the novelty.
usual = scenes(1, first=60).images[0]
frames = {
    "as in training": usual,
    "from high up, haze": scenes(1, "flight", first=2).images[0],
    "an object of another type": scenes(1, "novel", first=2).images[0],
    "red and blue swapped": usual.flip(0),
    "dark lens": usual // 16,
    "no image": torch.full_like(usual, 128),
}
runner = model.watch()
monitor = trustgp.Monitor(runner, std=5.0, patience=1)  # pixels
with trustgp.plots.figure("six_frames_and_their_verdicts.png", width=9, height=6.6) as page:
    for axes, (name, frame) in zip(page.subplots(2, 3).flat, frames.items(), strict=True):
        verdict = monitor(pixels(frame))
        print(f"{name:26} {verdict.status}")
        title = f"{name}: {verdict.status}"
        trustgp.plots.detections(frame, runner.detections[0], names=CLASSES, axes=axes, title=title)

# %%
# **When not to use it.** An object that the detector misses has no error bar; it may raise the novelty of
# the image. In flight the edges are still too confident ([measured](../../experiments/docs/detectors.md)).
