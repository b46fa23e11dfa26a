"""The quick looks of conf/debug/ that add something to a training: Lightning callbacks."""
