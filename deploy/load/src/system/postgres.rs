//! Usage of a PostgreSQL server of a started system.

use anyhow::Context as _;
use microblog_testkit::PostgresServer;
use serde::{Deserialize, Serialize};

use super::procfs;

/// Bytes on disk with indexes and dead rows, rows, and rows written (inserted, changed or deleted), of
/// all tables.
const SIZE: &str = "SELECT coalesce(sum(pg_total_relation_size(relid)), 0), \
     coalesce(sum(n_tup_ins - n_tup_del), 0), \
     coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables";

/// Usage of the databases of all services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SqlUsage {
    /// Bytes of all tables on disk, with indexes and dead rows.
    pub(crate) bytes: f64,
    pub(crate) rows: f64,
    /// Rows that were inserted, changed or deleted.
    pub(crate) written: f64,
    /// User and system time of all processes of the server.
    pub(crate) cpu_us: f64,
}

impl SqlUsage {
    /// Reads the usage so far. A session reports its rows up to ten seconds after it becomes idle.
    pub(super) fn read(server: &PostgresServer) -> anyhow::Result<Self> {
        let row = server.sql(SIZE);
        let numbers: Option<Vec<f64>> = row.split('|').map(|text| text.parse().ok()).collect();
        let Some([bytes, rows, written]) = numbers.as_deref() else {
            anyhow::bail!("PostgreSQL has no sizes of tables: {row}");
        };
        let cpu_us = procfs::cpu_us(&server.processes());
        let cpu_us = cpu_us.context("cannot read the processor time of PostgreSQL")?;
        Ok(Self { bytes: *bytes, rows: *rows, written: *written, cpu_us: cpu_us as f64 })
    }

    /// Returns the usage since an earlier time.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            rows: self.rows - before.rows,
            written: self.written - before.written,
            cpu_us: self.cpu_us - before.cpu_us,
        }
    }
}
