//! The page for browsers (`gateway/page/`): a client of the gateway, as people see it; and the
//! description of the API, for its tools.

use microblog_chassis::File;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [File; 9] = [
    File { path: "/", content_type: HTML, contents: include_str!("../page/index.html") },
    File { path: "/style.css", content_type: CSS, contents: include_str!("../page/style.css") },
    script("/app.js", include_str!("../page/app.js")),
    script("/client.js", include_str!("../page/client.js")),
    script("/elements.js", include_str!("../page/elements.js")),
    script("/metrics.js", include_str!("../page/metrics.js")),
    script("/operators.js", include_str!("../page/operators.js")),
    script("/texts.js", include_str!("../page/texts.js")),
    File {
        path: "/openapi.json",
        content_type: JSON,
        contents: include_str!("../../proto/openapi.json"),
    },
];

/// Returns the files of the page, with the tab for operators or without it.
pub(crate) fn files(has_metrics: bool) -> Vec<File> {
    let settings = match has_metrics {
        true => "export const hasMetrics = true;\n",
        false => "export const hasMetrics = false;\n",
    };
    FILES.into_iter().chain([script("/settings.js", settings)]).collect()
}

const fn script(path: &'static str, contents: &'static str) -> File {
    File { path, content_type: SCRIPT, contents }
}
