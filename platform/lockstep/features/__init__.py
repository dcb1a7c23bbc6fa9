"""Optional features, one folder each: removing a folder and its line in `lockstep.feature` removes the feature."""
