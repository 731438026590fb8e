//! What the commands have in common that measure a system of their own: its layout, its data, and how
//! it is called.

use microblog_local::edges::EdgeList;

use crate::{ceiling::Layout, data, system::System, trial::Trial, world::World};

/// What is measured, and how.
#[derive(Clone, Debug, clap::Args)]
// The group would have the name of the command's own.
#[group(skip)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) layout: Layout,
    #[command(flatten)]
    pub(crate) graph: data::Args,
    #[command(flatten)]
    pub(crate) trial: Trial,
}

impl Bench {
    /// Starts a system, with more in its environment than in this one's, and brings a graph into it.
    pub(crate) async fn start(
        &self,
        list: &EdgeList,
        environment: &[(String, String)],
    ) -> anyhow::Result<(System, World)> {
        let system = self.layout.system(environment).await?;
        let world = self.trial.world(&system, list, self.graph.seed()).await?;
        Ok((system, world))
    }
}
