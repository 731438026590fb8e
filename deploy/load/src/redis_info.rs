//! Statistics from Redis INFO.

use std::str::FromStr;

use anyhow::Context as _;
use microblog_keyspace::redis::{aio::MultiplexedConnection, cmd};

/// The text of some INFO sections.
#[derive(Debug)]
pub(crate) struct Info(String);

impl Info {
    /// Reads these sections from Redis.
    pub(crate) async fn fetch(
        admin: &mut MultiplexedConnection,
        sections: &[&str],
    ) -> anyhow::Result<Self> {
        let text = cmd("INFO").arg(sections).query_async(admin).await;
        text.map(Self).context("INFO failed on redis-server")
    }

    /// Returns a field.
    pub(crate) fn field<T: FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let mut lines = self.0.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.and_then(|value| value.trim().parse().ok());
        value.with_context(|| format!("INFO has no field `{name}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_a_missing_one_is_named() {
        let info = Info("# CPU\r\nused_cpu_sys:1.25\r\nused_cpu_sys_children:9\r\n".to_owned());
        assert_eq!(info.field::<f64>("used_cpu_sys").unwrap(), 1.25);
        let error = info.field::<u64>("used_cpu_user").unwrap_err().to_string();
        assert!(error.contains("used_cpu_user"), "{error}");
    }
}
