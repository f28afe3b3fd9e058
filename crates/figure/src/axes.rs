//! Axes that stay in the background.

use plotters::{chart::MeshStyle, coord::ranged1d::Ranged, prelude::*};

use crate::{FONT, GRID, INK, LABEL_SIZE};

/// Fine horizontal lines only; labels in the figures' font.
pub fn quiet_axes<'m, 'a, 'b, X, Y, B>(
    mesh: &'m mut MeshStyle<'a, 'b, X, Y, B>,
) -> &'m mut MeshStyle<'a, 'b, X, Y, B>
where
    X: Ranged,
    Y: Ranged,
    B: DrawingBackend,
{
    mesh.disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style((FONT, LABEL_SIZE - 1).into_font().color(&INK))
        .axis_desc_style((FONT, LABEL_SIZE).into_font().color(&INK))
}
