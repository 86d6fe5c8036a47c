"""The words of the detection study."""

PROTOCOL = [
    "Detectors: Conditional DETR on an EfficientNet, 1.9 million weights, from nothing, on one H200 "
    "(`trustgp_experiments.training.detector`, logs in `results/detection/training`): "
    "for rendered scenes of 128 pixels with a rover and a "
    "lander, 14,000 pictures, and for BCCD's 205 training pictures of blood cells at 192 x 144 "
    "pixels.",
    "Scenes: the error bar is fitted to 5,000 of the training pictures and calibrated on 500 others "
    "of the same style (carry); tested on 500 more, on 500 in flight (higher, a low sun, haze, motion "
    "blur) and on 500 with a thing that was never trained on (a structured rock, an astronaut, a "
    "second type of rover). Cells: BCCD's train, val and test pictures, and all 200 raccoons. The "
    "seeds of validation and test pictures are their own.",
    "A detection is a query whose surest class has a probability of 0.5 at least; all methods are "
    "asked about the same detections, those of the one detector, and all of them are scored. It lies "
    "on a novel thing when their boxes overlap by 0.3, more than with any other thing; it has found a "
    "thing when they overlap by 0.5.",
    "Methods: the softmax of the logits, 0 for no object; one temperature, of the validation "
    "detections; 20 passes with dropout 0.1 in the decoder, as it was trained; laplace-torch's last "
    "layer (Kronecker, probit), its prior chosen on validation; three detectors from other starts "
    "(the other two trained for 150 s, not 380), matched by overlap; and trustgp as it comes. "
    "Variance of logits over passes and members: of log odds against no object, the mean over "
    "classes. FPR95: familiar detections above the score that 95 % of the foreign exceed.",
    "D-ECE: gap between the probability of the detector's class and the share of detections that are "
    "right, over 10 bins. Edges: normal errors in pixels. One seed. Choices of the method (the kernel "
    "of the log odds, which weights, the novelty as a share of the prior variance) were made on other "
    "pictures (seed 3, 300 of each style), whose novel things and flights were looked at.",
]
HISTOGRAMS = (
    "Above the entropy of the probabilities, below the latent variance. Blue: detections on familiar "
    "test pictures. Orange: detections that lie on a novel thing. The less they overlap, the better."
)
RACCOONS = "The same for the detector of cells: its detections on test pictures, and on pictures of raccoons."
TIMES = "Times of one call over the detector's own, interleaved, in torch eager or as a recorded graph."
FLIGHT = (
    "A rendered flight with the monitor's verdict on each frame. Boxes are coloured by novelty, and "
    "the strip below shows it over time."
)
