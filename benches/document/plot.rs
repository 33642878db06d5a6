//! Plots of figures against the number of Services, both in logarithmic scale.

use std::error::Error;

use plotters::{coord::Shift, prelude::*};

use super::docs;

/// A line with its name: pairs of the number of Services and the figure.
pub type Series = (String, Vec<(f64, f64)>);

/// A panel: its title and its lines.
pub type Panel = (&'static str, Vec<Series>);

const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the panels, two in a row, as `docs/images/NAME.svg`.
pub fn draw(name: &str, panels: &[Panel]) -> Result<(), Box<dyn Error>> {
    let path = docs(&format!("images/{name}.svg"));
    let rows = panels.len().div_ceil(2);
    let root = SVGBackend::new(&path, (960, 320 * rows as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let columns = panels.len().min(2);
    for (area, (title, lines)) in root.split_evenly((rows, columns)).iter().zip(panels) {
        panel(area, title, lines)?;
    }
    root.present()?;
    Ok(())
}

fn panel(area: &Area, title: &str, lines: &[Series]) -> Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (least, most) = points().fold((f64::MAX, 0.0_f64), |(least, most), (_, y)| {
        (least.min(*y), most.max(*y))
    });
    if most <= 0.0 {
        return Ok(());
    }
    let first = points().map(|(x, _)| *x).fold(f64::MAX, f64::min);
    let last = points().map(|(x, _)| *x).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(56)
        .build_cartesian_2d(
            (first..last * 1.1).log_scale(),
            (least * 0.7..most * 1.5).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("Services")
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| super::table::figure(Some(*y)))
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}
