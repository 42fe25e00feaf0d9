"""The black box: given parameters and rows, a gradient. torch only, no Ray."""
