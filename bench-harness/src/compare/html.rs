//! The report with plots: one HTML file that needs no other. Latency percentiles of every send load as lines on a logarithmic scale,
//! throughputs as bars, and the table.
use super::table::{Measured, markdown};
use super::{CompareArgs, loads};
use crate::report::escaped;
use std::fmt::Write;

const COLOURS: [&str; 5] = ["#c0392b", "#2471a3", "#7f8c8d", "#b9770e", "#1e8449"];
const PERCENTILES: [&str; 5] = ["50", "99", "99.9", "99.99", "max"];
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 30.0;

pub(super) fn page(args: &CompareArgs, measured: &Measured, sides: &[&'static str]) -> String {
    let mut out = String::from(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>UringMQ beside Apache RocketMQ</title><style>body{font:15px sans-serif;\
         max-width:1000px;margin:2em auto}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:3px 8px}svg{margin:8px}\
         text{font:11px sans-serif}</style><h1>UringMQ beside Apache RocketMQ</h1><p>",
    );
    for (side, colour) in sides.iter().zip(COLOURS) {
        push(&mut out, format_args!("<span style=\"color:{colour}\">&#9632; {side}</span> "));
    }
    out += "</p><h2>Latency by percentile, ms</h2>";
    let plotted = |key| sides.iter().map(|side| measured.plotted(key, side)).collect::<Vec<_>>();
    for sends in loads::SENDS {
        let lines = plotted(sends.key);
        if lines.iter().any(Option::is_some) {
            latency_plot(&mut out, sends.rows[0].load, &lines);
        }
    }
    out += "<h2>Throughput, msg/s</h2>";
    for sends in loads::SENDS.iter().filter(|s| !s.how.contains(&"--rate")) {
        let lines = plotted(sends.key);
        if lines.iter().any(Option::is_some) {
            throughput_plot(&mut out, sends.rows[0].load, &lines, sides);
        }
    }
    out += "<h2>All figures</h2><table>";
    let table = markdown(args, measured, sides);
    for line in table.lines().filter(|line| line.starts_with('|') && !line.starts_with("| ---")) {
        let cells = line.trim_matches('|').split('|').map(|cell| format!("<td>{}</td>", escaped(cell.trim())));
        push(&mut out, format_args!("<tr>{}</tr>", cells.collect::<String>()));
    }
    let how = table.lines().rev().find(|line| !line.is_empty()).unwrap_or_default();
    push(&mut out, format_args!("</table><p>{}</p></html>\n", escaped(how)));
    out
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a String takes all");
}

fn latency_plot(out: &mut String, title: &str, lines: &[Option<[f64; 6]>]) {
    let values = || lines.iter().flatten().flat_map(|figures| figures[..5].iter().copied());
    let top = values().fold(1.0, f64::max).log10().ceil();
    let low = values().fold(f64::MAX, f64::min).max(0.001).log10().floor().min(top - 1.0);
    let y = |ms: f64| {
        let part = (ms.max(0.001).log10() - low) / (top - low);
        HEIGHT - BOTTOM - part.clamp(0.0, 1.0) * (HEIGHT - BOTTOM - 20.0)
    };
    let x = |at: usize| LEFT + at as f64 * (WIDTH - LEFT - 20.0) / 4.0;
    begin(out, title);
    let mut decade = low;
    while decade <= top {
        let (at, right) = (y(10f64.powf(decade)), WIDTH - 10.0);
        push(out, format_args!("<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"));
        push(out, format_args!("<text x=\"8\" y=\"{:.1}\">{}</text>", at + 4.0, 10f64.powf(decade)));
        decade += 1.0;
    }
    for (at, name) in PERCENTILES.iter().enumerate() {
        push(out, format_args!("<text x=\"{:.1}\" y=\"{}\">{name}</text>", x(at) - 10.0, HEIGHT - 10.0));
    }
    for (figures, colour) in lines.iter().zip(COLOURS) {
        let Some(figures) = figures else { continue };
        let points: String = (0..5).map(|at| format!("{:.1},{:.1} ", x(at), y(figures[at]))).collect();
        push(out, format_args!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"));
    }
    *out += "</svg>";
}

fn throughput_plot(out: &mut String, title: &str, lines: &[Option<[f64; 6]>], sides: &[&str]) {
    let most = lines.iter().flatten().map(|figures| figures[5]).fold(1.0, f64::max);
    begin(out, title);
    for (at, (figures, side)) in lines.iter().zip(sides).enumerate() {
        let Some(figures) = figures else { continue };
        let (top, wide) = (35.0 + 55.0 * at as f64, figures[5] / most * (WIDTH - 190.0));
        let colour = COLOURS[at % COLOURS.len()];
        push(out, format_args!("<text x=\"8\" y=\"{}\">{side}</text>", top + 22.0));
        push(out, format_args!("<rect x=\"{LEFT}\" y=\"{top}\" width=\"{wide:.1}\" height=\"34\" fill=\"{colour}\"/>"));
        push(out, format_args!("<text x=\"{:.1}\" y=\"{}\">{:.0}</text>", LEFT + wide + 6.0, top + 22.0, figures[5]));
    }
    *out += "</svg>";
}

fn begin(out: &mut String, title: &str) {
    push(
        out,
        format_args!(
            "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\"><title>{0}</title><text x=\"{LEFT}\" y=\"14\">{0}</text>",
            escaped(title)
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_line_for_each_side_that_was_measured() {
        let mut out = String::new();
        let line = Some([0.1, 1.0, 10.0, 20.0, 400.0, 5000.0]);
        latency_plot(&mut out, "a < b", &[line, None, line]);
        assert_eq!(out.matches("<polyline").count(), 2);
        assert!(out.contains("a &lt; b") && out.contains(">1000</text>") && out.contains(">0.1</text>"), "{out}");
        let mut bars = String::new();
        throughput_plot(&mut bars, "t", &[line, None], &["apache", "uringmq"]);
        assert_eq!((bars.matches("<rect").count(), bars.contains(">5000</text>")), (1, true));
    }
}
