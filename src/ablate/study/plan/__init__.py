"""Planning a study: parse the request, lay out the arms, check every one, estimate the cost."""
