//! Options that the commands share that measure a system of their own: layout, data and load.

use microblog_local::edges::EdgeList;

use crate::{
    data,
    system::{Shape, System},
    trial::Trial,
    world::World,
};

/// What is measured, and how.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Bench {
    /// The layout of the system
    #[arg(long = "layout", value_name = "LAYOUT", default_value = "one")]
    shape: Shape,
    /// The worker threads of each process [default: one for each core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    #[command(flatten)]
    pub(crate) graph: data::Args,
    #[command(flatten)]
    pub(crate) trial: Trial,
}

impl Bench {
    /// Starts a system with these additional environment variables, and imports a graph.
    pub(crate) async fn start(
        &self,
        list: &EdgeList,
        environment: &[(String, String)],
    ) -> anyhow::Result<(System, World)> {
        let system = System::start(self.shape, self.threads, environment).await?;
        let world = self.trial.world(&system, list, self.graph.seed()).await?;
        Ok((system, world))
    }
}
