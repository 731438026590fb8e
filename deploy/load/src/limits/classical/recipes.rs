//! The usual recipes: sorted sets of ids with the times of the follows, and either temporary keys
//! for the page, or both of the viewer's lists read as a whole.

use microblog_keyspace::redis::{self, Client, aio::MultiplexedConnection, cmd};

use super::{PAGE, account, per_page};
use crate::{
    limits::wire::{self, Wire},
    system::connect,
};

/// Accounts added by one command.
const CHUNK: u64 = 10_000;

/// All in one slot, so that they may be intersected on a cluster, too.
const FOLLOWING: &str = "load:{classical}:following";
const FOLLOWERS: &str = "load:{classical}:followers";
const SHOWN: &str = "load:{classical}:page";
const STANDING: [&str; 3] = [
    "load:{classical}:page:following",
    "load:{classical}:page:followers",
    "load:{classical}:page:mutual",
];

/// What they cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipes {
    /// Redis' time for a page by temporary keys: the page is stored, intersected with whom the
    /// viewer follows, with who follows the viewer, and with both, and the three are read.
    pub(crate) temporary_keys_us: f64,
    /// Redis' time for a page by reading both lists as a whole, to be compared by the reader.
    pub(crate) whole_lists_us: f64,
}

/// Makes lists of this length in Redis, whose administrator this is, beside what is there, measures
/// pages, and removes the lists. Of the accounts on a page, the viewer follows some, is followed by
/// some, and both by some.
///
/// To read the page's own ids is left out: it costs the same everywhere. Short lists are packed up to
/// the length that this Redis is configured for, and searched from the front.
pub(crate) async fn recipes(admin: &Client, length: u64) -> anyhow::Result<Recipes> {
    let mut connection = connect(admin).await?;
    remove(&mut connection).await?;
    let measured = measure(Wire::connect(admin).await?, &mut connection, length).await;
    remove(&mut connection).await?;
    measured
}

async fn measure(
    mut wire: Wire,
    admin: &mut MultiplexedConnection,
    length: u64,
) -> anyhow::Result<Recipes> {
    // They overlap by half, so that there are mutual follows.
    fill(admin, FOLLOWING, 0, length).await?;
    fill(admin, FOLLOWERS, length / 2, length).await?;
    let mut caller = admin.clone();
    let temporary_keys_us = per_page(admin, async |page| {
        Ok(temporary_keys(length, page).exec_async(&mut caller).await?)
    })
    .await?;
    let range =
        |key: &str| wire::encode(&["ZRANGE", key, "0", "-1"].map(|word| word.as_bytes().to_vec()));
    let commands = [range(FOLLOWING), range(FOLLOWERS)].concat();
    let whole_lists_us = per_page(admin, async |_| {
        wire.exchange(&commands, 2).await?;
        Ok(())
    })
    .await?;
    Ok(Recipes { temporary_keys_us, whole_lists_us })
}

/// Returns the accounts on a page: evenly from all that are in one of the lists or in none, others
/// on each page.
fn shown(length: u64, page: u64) -> impl Iterator<Item = u64> {
    let all = length * 2;
    (0..PAGE).map(move |place| account((place * all / PAGE + page * 7_919) % all))
}

fn temporary_keys(length: u64, page: u64) -> redis::Pipeline {
    let mut pipe = redis::pipe();
    pipe.cmd("DEL").arg(SHOWN).ignore();
    let add = pipe.cmd("ZADD").arg(SHOWN);
    for (place, id) in shown(length, page).enumerate() {
        add.arg(place).arg(id);
    }
    let [following, followers, mutual] = STANDING;
    let mut intersect = |to: &str, lists: &[&str]| {
        pipe.cmd("ZINTERSTORE").arg(to).arg(lists.len() + 1).arg(SHOWN).arg(lists);
    };
    intersect(following, &[FOLLOWING]);
    intersect(followers, &[FOLLOWERS]);
    intersect(mutual, &[FOLLOWING, FOLLOWERS]);
    for key in STANDING {
        pipe.cmd("ZREVRANGE").arg(key).arg(0).arg(-1);
    }
    pipe
}

async fn fill(
    admin: &mut MultiplexedConnection,
    key: &str,
    first: u64,
    length: u64,
) -> anyhow::Result<()> {
    let mut begin = 0;
    while begin < length {
        let end = length.min(begin + CHUNK);
        let mut add = cmd("ZADD");
        add.arg(key);
        for number in first + begin..first + end {
            add.arg(account(number) >> 12).arg(account(number));
        }
        add.exec_async(admin).await?;
        begin = end;
    }
    Ok(())
}

async fn remove(admin: &mut MultiplexedConnection) -> anyhow::Result<()> {
    let mut unlink = cmd("UNLINK");
    unlink.arg(&[FOLLOWING, FOLLOWERS, SHOWN]).arg(&STANDING);
    Ok(unlink.exec_async(admin).await?)
}

#[cfg(test)]
mod tests {
    use microblog_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn recipes_say_how_the_viewer_stands_and_leave_nothing() {
        let server = RedisServer::start().await;
        let mut admin = server.admin().await;
        fill(&mut admin, FOLLOWING, 0, 1_000).await.unwrap();
        fill(&mut admin, FOLLOWERS, 500, 1_000).await.unwrap();
        temporary_keys(1_000, 0).exec_async(&mut admin).await.unwrap();
        let mut counts = Vec::new();
        for key in STANDING {
            let count: u64 = cmd("ZCARD").arg(key).query_async(&mut admin).await.unwrap();
            counts.push(count);
        }
        assert_eq!(counts, [25, 25, 12]);

        let recipes = recipes(&Client::open(server.admin_url()).unwrap(), 500).await.unwrap();
        assert!(recipes.temporary_keys_us > 0.0 && recipes.whole_lists_us > 0.0);
        let left: u64 = cmd("DBSIZE").query_async(&mut admin).await.unwrap();
        assert_eq!(left, 0);
    }
}
