//! Line plots as PNG files, the same on every machine: with a font of their own and a white ground,
//! which is readable on dark pages, too. Knows nothing of what is plotted.

use std::{fs::File, io::BufWriter, path::Path};

use anyhow::{Context as _, anyhow, ensure};
use plotters::{
    coord::Shift,
    prelude::{
        BLACK, BitMapBackend, ChartBuilder, Circle, Color as _, DrawingArea, IntoDrawingArea as _,
        IntoLogRange as _, LineSeries, PathElement, RGBColor, SeriesLabelPosition, WHITE,
    },
    style::{FontStyle, register_font},
};

const WIDTH: u32 = 1600;
const HEIGHT: u32 = 1000;
const RGB_BYTES: usize = 3;

/// The family under which the font is known here.
const FONT: &str = "sans-serif";
const TEXT_PIXELS: u32 = 32;
const MARGIN_PIXELS: u32 = 32;
const X_LABELS_PIXELS: u32 = 100;
const Y_LABELS_PIXELS: u32 = 140;
const LINE_PIXELS: u32 = 5;
const POINT_PIXELS: u32 = 9;
const KEY_PIXELS: i32 = 40;

/// Colours that colour-blind people tell apart (Okabe and Ito, "Color Universal Design", 2008), with
/// grey for yellow, which is hardly seen on white. A ninth line has the first one again.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(153, 153, 153),
];

/// Draws each series as a line with its points and its name, over a logarithmic axis of accounts.
/// Fails without points, and where some cannot be drawn: x must be positive and y not negative.
pub(crate) fn cost_by_accounts(
    file: &Path,
    series: &[(String, Vec<(f64, f64)>)],
    x_label: &str,
    y_label: &str,
) -> anyhow::Result<()> {
    let mut pixels = vec![0; WIDTH as usize * HEIGHT as usize * RGB_BYTES];
    let area = BitMapBackend::with_buffer(&mut pixels, (WIDTH, HEIGHT)).into_drawing_area();
    draw(&area, series, x_label, y_label)?;
    drop(area);
    write(file, &pixels).with_context(|| format!("cannot write {}", file.display()))
}

fn draw(
    area: &DrawingArea<BitMapBackend<'_>, Shift>,
    series: &[(String, Vec<(f64, f64)>)],
    x_label: &str,
    y_label: &str,
) -> anyhow::Result<()> {
    // No machine need have one.
    register_font(FONT, FontStyle::Normal, ttf_noto_sans::REGULAR)
        .map_err(|_| anyhow!("the font cannot be read"))?;
    let (x, y_max) = ranges(series)?;
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN_PIXELS)
        .x_label_area_size(X_LABELS_PIXELS)
        .y_label_area_size(Y_LABELS_PIXELS)
        .build_cartesian_2d((x.0..x.1).log_scale(), 0.0..y_max)?;
    chart
        .configure_mesh()
        .x_desc(x_label)
        .y_desc(y_label)
        .x_label_formatter(&|accounts| shortened(*accounts))
        .y_label_formatter(&|cost| shortened(*cost))
        .label_style((FONT, TEXT_PIXELS))
        .axis_desc_style((FONT, TEXT_PIXELS))
        .bold_line_style(BLACK.mix(0.2))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for ((name, points), colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(LINE_PIXELS));
        chart.draw_series(line)?.label(name).legend(move |(x, y)| {
            PathElement::new([(x, y), (x + KEY_PIXELS, y)], colour.stroke_width(LINE_PIXELS))
        });
        chart.draw_series(
            points.iter().map(|&point| Circle::new(point, POINT_PIXELS, colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .legend_area_size(KEY_PIXELS + 16)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, TEXT_PIXELS))
        .draw()?;
    area.present()?;
    Ok(())
}

/// Returns the ends of the axis of accounts, and that of costs, which begins with 0.
fn ranges(series: &[(String, Vec<(f64, f64)>)]) -> anyhow::Result<((f64, f64), f64)> {
    let points = || series.iter().flat_map(|(_, points)| points);
    ensure!(points().next().is_some(), "there are no points to plot");
    let drawn = |&(x, y): &(f64, f64)| x > 0.0 && y >= 0.0 && x.is_finite() && y.is_finite();
    ensure!(points().all(drawn), "some points cannot be plotted");
    let (least, most) =
        points().fold((f64::MAX, 0.0_f64), |(least, most), &(x, _)| (least.min(x), most.max(x)));
    let y_max = points().fold(0.0_f64, |most, &(_, y)| most.max(y));
    // Some room around the points, and above them for the names.
    Ok(((least / 1.3, most * 1.3), if y_max > 0.0 { y_max * 1.3 } else { 1.0 }))
}

/// Returns a number in as few characters as are clear: 1500 as 1.5k, a million as 1M.
fn shortened(number: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (divisor, unit) =
        units.into_iter().find(|(divisor, _)| number >= *divisor).unwrap_or((1.0, ""));
    // Two digits behind the point are rounded, and no noughts left at the end.
    let rounded = (number / divisor * 100.0).round() / 100.0;
    format!("{rounded}{unit}")
}

fn write(file: &Path, pixels: &[u8]) -> anyhow::Result<()> {
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(file)?), WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, io::BufReader};

    use super::*;

    fn series() -> Vec<(String, Vec<(f64, f64)>)> {
        let line =
            |factor: usize| [1e3, 1e4, 1e5, 1e6].map(|x: f64| (x, factor as f64 * x.ln())).to_vec();
        (1..=COLOURS.len()).map(|factor| (format!("line {factor}"), line(factor))).collect()
    }

    fn plotted(series: &[(String, Vec<(f64, f64)>)]) -> anyhow::Result<Vec<u8>> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("plot.png");
        cost_by_accounts(&file, series, "accounts", "µs of one core for each call")?;
        let decoder = png::Decoder::new(BufReader::new(File::open(file).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (WIDTH, HEIGHT));
        Ok(pixels)
    }

    #[test]
    fn each_line_has_its_colour_and_the_ground_is_white() {
        let pixels = plotted(&series()).unwrap();
        let drawn: HashSet<_> = pixels.chunks(RGB_BYTES).collect();
        for RGBColor(red, green, blue) in COLOURS {
            assert!(drawn.contains(&[red, green, blue][..]), "{red} {green} {blue}");
        }
        assert_eq!(pixels[..RGB_BYTES], [255; RGB_BYTES]);
    }

    #[test]
    fn names_are_drawn_without_any_font_on_the_machine() {
        let with = plotted(&series()).unwrap();
        let renamed = series().into_iter().map(|(name, points)| (name + "!", points));
        assert_ne!(with, plotted(&renamed.collect::<Vec<_>>()).unwrap());
    }

    #[test]
    fn what_cannot_be_drawn_is_refused() {
        for points in [vec![], vec![(0.0, 1.0)], vec![(1.0, -1.0)], vec![(1.0, f64::NAN)]] {
            plotted(&[("one".to_owned(), points)]).unwrap_err();
        }
        plotted(&[]).unwrap_err();
        plotted(&[("one".to_owned(), vec![(1.0, 0.0)])]).unwrap();
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.25, 7.0, 999.0, 1000.0, 1500.0, 2e6, 1.25e9];
        let shown = ["0", "0.25", "7", "999", "1k", "1.5k", "2M", "1.25G"];
        assert_eq!(numbers.map(shortened), shown);
    }
}
