//! The tables are partitioned by year in PostgreSQL; SQLite has no partitions.

use futures::future::{join, join_all, try_join_all};
use microblog_domain::Stamp;

use crate::{
    imports::{import, imported, sum},
    support::{System, Topology, id, lists::List},
};

/// Years from that of the first ids on, of which there are no posts.
const OTHERS: [u64; 2] = [3, 7];

/// The milliseconds of a year.
const YEAR_MS: u64 = 31_557_600_000;

async fn partitions(system: &System) -> i64 {
    let count = "SELECT COUNT(*) FROM pg_inherits WHERE inhparent = 'posts'::regclass";
    system.numbers(count).await[0]
}

#[tokio::test]
async fn the_first_posts_of_a_year_make_its_partitions_once() {
    let system = System::start(Topology::Cluster).await;
    let clients = system.four_clients().await;
    assert_eq!(partitions(&system).await, 0);
    let publish = |n: u64| {
        let mut client = clients[n as usize % 4].clone();
        async move {
            let request = microblog_proto::post::CreatePostRequest {
                author_id: id(n + 1),
                request_id: crate::support::request_id(),
                text: "first".to_owned(),
            };
            client.create_post(request).await.unwrap().into_inner().post.unwrap().id
        }
    };
    let made = join_all((0..200).map(publish)).await;
    assert_eq!(partitions(&system).await, 1);
    let fill = "SELECT COUNT(*) FROM pg_class WHERE relname LIKE 'posts\\_%' \
        AND reloptions @> ARRAY['fillfactor=70'] AND relkind = 'r'";
    assert_eq!(system.numbers(fill).await, [1]);
    for post in made {
        system.like(id(900), post).await.unwrap();
    }
    system.settles().await;
}

/// Posts of two years that have none yet are imported by all processes at once, each by each.
#[tokio::test]
async fn other_years_begin_while_posts_are_written() {
    let system = System::start(Topology::Cluster).await;
    let clients = system.four_clients().await;
    let post = system.create(id(1), "this year").await.unwrap().id;
    assert_eq!(partitions(&system).await, 1);
    // Forty authors with a post of each year.
    let old = |n: u64| {
        let made_ms = Stamp::EPOCH_MS + OTHERS[n as usize / 40] * YEAR_MS + n * 1_000;
        imported(2 + n % 40, made_ms, "of another year")
    };
    let posts: Vec<_> = (0..80).map(old).collect();
    let imports =
        clients.iter().flat_map(|client| posts.chunks(20).map(move |some| import(client, some)));
    let reposts = (100..160).map(|n| system.repost(id(n), post));
    let (imports, reposts) = join(join_all(imports), try_join_all(reposts)).await;
    assert_eq!(sum(&imports), [80, 240, 0]);
    reposts.unwrap();
    assert_eq!(partitions(&system).await, 3);
    for client in &clients {
        for author in 2..42 {
            let listed = List::UserPosts(id(author)).whole(client, 20).await;
            let years: Vec<_> = listed.iter().map(|post| (post >> 12) / YEAR_MS).collect();
            assert_eq!(years, [OTHERS[1], OTHERS[0]]);
        }
    }
    system.settles().await;
}

#[tokio::test]
async fn an_id_too_far_ahead_of_the_clock_is_refused() {
    use microblog_proto::common::ErrorReason;
    for topology in [Topology::Single, Topology::Cluster] {
        let system = System::start(topology).await;
        let post = system.create(id(1), "now").await.unwrap().id;
        // As if a clock had been an hour ahead.
        let ahead = post + (3_600_000 << 12);
        let set = format!("UPDATE accounts SET newest = {ahead} WHERE id = {}", id(1));
        system.execute(&set).await;
        let refused = system.create(id(1), "later").await;
        crate::support::assert_rejected(refused, tonic::Code::Unavailable, ErrorReason::ClockAhead);
        system.create(id(2), "others are not concerned").await.unwrap();
        let set =
            format!("UPDATE accounts SET newest = {} WHERE id = {}", post + (60_000 << 12), id(1));
        system.execute(&set).await;
        let later = system.create(id(1), "a minute is borne").await.unwrap().id;
        assert!(later > post + (60_000 << 12));
        system.settles().await;
    }
}
