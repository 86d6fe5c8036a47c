"""A detector's boxes with error bars

A small Conditional DETR that finds a rover and a lander on a planet gets an error bar for each edge of its
boxes, and a number that distinguishes known objects from those it was never trained on.
"""

# %%
# The detector and the rendered pictures are part of the package, so this runs anywhere. Two dozen pictures to
# fit on are for a page that is made in seconds: take all that your detector was trained on.
from matplotlib import pyplot

import trustgp
from trustgp_experiments.datasets.scenes import CLASSES, scenes
from trustgp_experiments.training.detector_network import pixels, trained


def pictures(n, style="carry", first=0):
    drawn = scenes(n, style, first=first)
    targets = list(map(trustgp.BoxTargets, drawn.boxes, drawn.labels))
    return pixels(drawn.images), targets  # boxes: left, top, right, bottom in pixels


detector = trained("scenes")
model = trustgp.detection.fit(detector, pictures(24), validation=pictures(24, first=24), progress=False)
model.threshold(false_alarm=0.1)

# %%
# **Known objects, as in training**: each edge has a standard deviation in pixels.
known, _ = pictures(3, first=60)
for found in model.predict(known):
    for box, std, label in zip(found.boxes, found.std, found.labels, strict=True):
        print(
            f"{CLASSES[label]:7}",
            [round(edge) for edge in box.tolist()],
            "±",
            [round(s, 1) for s in std.tolist()],
        )

# %%
# **In flight** (from high up, low sun, haze) **and novel objects.** Bands are the 95 % intervals of
# the edges; colours go from blue, familiar, to red, novel.
styles = {"as in training": ("carry", 60), "in flight": ("flight", 2), "novel objects": ("novel", 2)}
figure, axes = pyplot.subplots(3, 3, figsize=(9, 9.6), layout="constrained")
for row, (title, (style, first)) in zip(axes, styles.items(), strict=True):
    images = scenes(3, style, first=first).images
    for axis, image, found in zip(row, images, model.predict(pixels(images)), strict=True):
        trustgp.plots.detections(image, found, names=CLASSES, axes=axis, title=title)
        print(f"{title}: {len(found.labels)} found, largest novelty {found.summary['novelty']:.2f}")

# %%
# **When not to use it.** Only what is detected has an error bar for its box; an object that the
# detector misses may show in the picture's novelty. In flight the edges are still too sure
# ([measured](../../experiments/docs/detectors.md)).
