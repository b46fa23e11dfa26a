"""The options of conf/debug/ that add a Lightning callback to the training."""
