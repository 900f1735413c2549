"""The EAGLE-3 network, its loss, packing, trainer and checkpoints; the train stage."""
