"""What a person sees: workgroup mappings in the terminal, as SVG figures, as one self-contained page, in a notebook."""

from tilewave.view.picture import Picture, show
from tilewave.view.placement import PicturedLaunch, Placement, parse_grid
from tilewave.view.save import SaveError

__all__ = ["Picture", "PicturedLaunch", "Placement", "SaveError", "parse_grid", "show"]
