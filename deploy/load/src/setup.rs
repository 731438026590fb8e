//! Options of the commands that start their own system: layout, graph and load.

use microblog_local::edges::EdgeList;

use crate::{
    benchmark::Benchmark,
    data_set::DataSet,
    follow_graph,
    system::{Layout, System},
};

/// Options of the commands that start their own system.
#[derive(Clone, Debug, clap::Args)]
// Without `skip`, clap gives the group the name of the command's own group.
#[group(skip)]
pub(crate) struct Setup {
    /// The layout of the system
    #[arg(long = "layout", value_name = "LAYOUT", default_value = "one")]
    layout: Layout,
    /// Worker threads per process [default: one for each core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    #[command(flatten)]
    pub(crate) graph: follow_graph::Args,
    #[command(flatten)]
    pub(crate) benchmark: Benchmark,
}

impl Setup {
    /// Starts a system, and imports the graph.
    pub(crate) async fn start(&self, list: &EdgeList) -> anyhow::Result<(System, DataSet)> {
        let system = System::start(self.layout, self.threads, None, &[]).await?;
        let data_set = self.benchmark.create_data_set(&system, list, self.graph.seed()).await?;
        Ok((system, data_set))
    }
}
