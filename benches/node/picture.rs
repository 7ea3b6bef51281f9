//! The figures as a chart in SVG: bars in three panels, smolet's own above the others.

use std::fmt::Write as _;

use crate::PODS;
use crate::report::{Figures, Report, mib};

const WIDTH: f64 = 760.0;
/// Where bars begin; labels stand before, numbers behind.
const LEFT: f64 = 210.0;
const BAR_MAX: f64 = 450.0;
const ROW: f64 = 18.0;

const SMOLET: &str = "#2f7d4f";
const RAW: &str = "#9aa5ad";
const KUBELET: &str = "#c26a2b";

struct Bar {
    label: String,
    value: f64,
    color: &'static str,
}

struct Panel {
    title: &'static str,
    decimals: usize,
    bars: Vec<Bar>,
}

/// The chart as a file's text.
pub fn svg(report: &Report) -> String {
    let panels = [
        at_rest(report, "Resident memory at rest, MiB", |figures, at| mib(figures.idle[at].end.resident_kib)),
        at_rest(report, "CPU at rest, ms a minute", |figures, at| figures.idle[at].cpu_ms_per_minute),
        times(report),
    ];
    let mut body = String::new();
    let mut y = 24.0;
    for panel in &panels {
        let _ = writeln!(body, r#"<text x="8" y="{y}" font-weight="bold">{}</text>"#, panel.title);
        y += 8.0;
        let most = panel.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        for bar in &panel.bars {
            let (length, middle) = ((bar.value / most * BAR_MAX).max(1.0), y + 12.0);
            let _ = writeln!(
                body,
                r#"<text x="{:.0}" y="{middle}" text-anchor="end">{}</text><rect x="{LEFT}" y="{:.0}" width="{length:.1}" height="13" fill="{}"/><text x="{:.1}" y="{middle}">{:.*}</text>"#,
                LEFT - 8.0,
                bar.label,
                y + 2.0,
                bar.color,
                LEFT + length + 6.0,
                panel.decimals,
                bar.value,
            );
            y += ROW;
        }
        y += 28.0;
    }
    let height = y - 12.0;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="#222">
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
{body}</svg>
"##
    )
}

fn at_rest(report: &Report, title: &'static str, value: fn(&Figures, usize) -> f64) -> Panel {
    let mut bars = Vec::new();
    for (at, pods) in PODS.iter().enumerate() {
        let label = |agent| format!("{agent}, {pods} pods");
        bars.push(Bar { label: label("smolet"), value: value(&report.smolet, at), color: SMOLET });
        if let Some(kubelet) = &report.kubelet {
            bars.push(Bar { label: label("kubelet"), value: value(kubelet, at), color: KUBELET });
        }
    }
    Panel { title, decimals: 1, bars }
}

fn times(report: &Report) -> Panel {
    let Report { smolet, raw, kubelet, .. } = report;
    let mut bars = Vec::new();
    let mut row = |what: &str, own: f64, floor: f64, pick: fn(&Figures) -> f64| {
        bars.push(Bar { label: format!("{what}: smolet"), value: own, color: SMOLET });
        bars.push(Bar { label: "the CRI calls alone".to_owned(), value: floor, color: RAW });
        if let Some(kubelet) = kubelet {
            bars.push(Bar { label: "kubelet".to_owned(), value: pick(kubelet), color: KUBELET });
        }
    };
    row("manifest → running", smolet.start.total.median(), raw.start.median(), |k| k.start.total.median());
    row("exit → restarted", smolet.restart.total.median(), raw.restart.median(), |k| {
        k.restart.total.median()
    });
    row("30 pods at once", smolet.burst.total.median(), raw.best_burst().1, |k| k.burst.total.median());
    Panel { title: "Times, median ms", decimals: 0, bars }
}
