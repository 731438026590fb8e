//! How a process has read its items.

use std::net::SocketAddr;

use hyper::Request;

/// Returns how many items a process has read so far, by its metrics: from the cache, loaded into it, and past
/// it.
pub async fn item_reads(metrics: SocketAddr) -> [f64; 3] {
    let request = Request::get("/metrics").body(Vec::new()).expect("a request");
    let body = crate::http(metrics, request).await.into_body();
    let text = String::from_utf8(body.to_vec()).expect("text");
    ["hit", "load", "bypass"].map(|result| {
        let result = format!("result=\"{result}\"");
        let of_result =
            |line: &&str| line.starts_with("microblog_item_reads") && line.contains(&result);
        let lines = text.lines().filter(of_result);
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    })
}
