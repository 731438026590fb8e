//! The page for browsers (`gateway/page/`): a client of the gateway, as people see it.

use microblog_chassis::File;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page.
pub(crate) const FILES: &[File] = &[
    File { path: "/", content_type: HTML, contents: include_str!("../page/index.html") },
    File { path: "/style.css", content_type: CSS, contents: include_str!("../page/style.css") },
    File { path: "/app.js", content_type: SCRIPT, contents: include_str!("../page/app.js") },
    File { path: "/client.js", content_type: SCRIPT, contents: include_str!("../page/client.js") },
    File { path: "/texts.js", content_type: SCRIPT, contents: include_str!("../page/texts.js") },
];
