"""Pure tensor maths without state: distances, image priors, label recovery, matching."""
