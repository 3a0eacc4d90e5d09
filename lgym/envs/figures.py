"""Matplotlib figures as pixels."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def chart_array(figure: Figure) -> np.ndarray:
    """The figure's pixels, [height, width, 3] of uint8, for TensorBoard's `add_image(dataformats="HWC")`."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
