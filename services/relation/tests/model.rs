//! Model test of the follow graph: tasks change the relations between few accounts through two services,
//! while Redis loses keys. Each task has a pair of accounts to itself, so it knows the answer to each of its
//! reads. In the end, lists and lengths agree with the model.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeSet, time::Duration};

use microblog_proto::relation::{self as pb, EdgeList, RelationState};
use microblog_testkit::{self as testkit, Topology, redis::cmd};
use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};

use support::{Client, System, id, ids, list_for, list_of};

const USERS: u64 = 6;

/// So many others each account follows, and as many follow it: with some of its peers, an entry gets a set.
const OTHERS: u64 = 46;

#[derive(Clone, Copy, Debug)]
enum Action {
    Follow,
    Unfollow,
    RemoveFollower,
    Block,
    Unblock,
    Mute,
    Unmute,
}

fn actions() -> impl Strategy<Value = Vec<(Action, bool, bool)>> {
    use Action::{Block, Follow, Mute, RemoveFollower, Unblock, Unfollow, Unmute};
    let action = prop_oneof![
        5 => Just(Follow), 2 => Just(Unfollow), 1 => Just(RemoveFollower), 1 => Just(Block),
        2 => Just(Unblock), 1 => Just(Mute), 1 => Just(Unmute),
    ];
    prop::collection::vec((action, any::<bool>(), any::<bool>()), 40)
}

/// The relations of one account to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Side {
    follows: bool,
    blocks: bool,
    mutes: bool,
}

/// Takes an action of an account on another. `own` is the relation of the first to the second.
async fn act(client: &Client, action: Action, [user, peer]: [u64; 2], sides: [&mut Side; 2]) {
    let mut client = client.clone();
    let [own, other] = sides;
    match action {
        Action::Follow => {
            let request = pb::FollowRequest { follower_id: user, target_id: peer };
            let followed = client.follow(request).await;
            let is_blocked = own.blocks || other.blocks;
            assert_eq!(followed.is_err(), is_blocked, "{followed:?}");
            own.follows = !is_blocked;
        }
        Action::Unfollow => {
            let request = pb::UnfollowRequest { follower_id: user, target_id: peer };
            client.unfollow(request).await.unwrap();
            own.follows = false;
        }
        Action::RemoveFollower => {
            let request = pb::RemoveFollowerRequest { user_id: user, follower_id: peer };
            client.remove_follower(request).await.unwrap();
            other.follows = false;
        }
        Action::Block => {
            client.block(pb::BlockRequest { user_id: user, target_id: peer }).await.unwrap();
            (own.blocks, own.follows, other.follows) = (true, false, false);
        }
        Action::Unblock => {
            client.unblock(pb::UnblockRequest { user_id: user, target_id: peer }).await.unwrap();
            own.blocks = false;
        }
        Action::Mute => {
            client.mute(pb::MuteRequest { user_id: user, target_id: peer }).await.unwrap();
            own.mutes = true;
        }
        Action::Unmute => {
            client.unmute(pb::UnmuteRequest { user_id: user, target_id: peer }).await.unwrap();
            own.mutes = false;
        }
    }
}

async fn read(client: &Client, [user, peer]: [u64; 2], own: Side, other: Side) {
    let request = pb::GetRelationRequest { viewer_id: user, target_id: peer };
    let relation = client.clone().get_relation(request).await.unwrap().into_inner();
    let relation = relation.relation.unwrap();
    let state = match (own.follows, other.follows) {
        (false, false) => RelationState::None,
        (true, false) => RelationState::Following,
        (false, true) => RelationState::Follower,
        (true, true) => RelationState::Mutual,
    };
    let seen = (relation.state(), relation.blocking, relation.blocked_by, relation.muting);
    assert_eq!(seen, (state, own.blocks, other.blocks, own.mutes));
}

/// Takes the actions of a pair of accounts, and reads each result through both services.
async fn pair(
    clients: [Client; 2],
    users: [u64; 2],
    actions: Vec<(Action, bool, bool)>,
) -> [Side; 2] {
    let mut sides = [Side::default(); 2];
    for (action, is_reversed, is_second) in actions {
        let [first, second] = &mut sides;
        let (users, of) = match is_reversed {
            false => (users, [first, second]),
            true => ([users[1], users[0]], [second, first]),
        };
        act(&clients[usize::from(is_second)], action, users, of).await;
        let [own, other] = if is_reversed { [sides[1], sides[0]] } else { sides };
        for client in &clients {
            read(client, users, own, other).await;
            read(client, [users[1], users[0]], other, own).await;
        }
    }
    sides
}

/// Deletes keys of entries, leases and sets, one at a time.
async fn lose_keys(redis: &testkit::Store) {
    let mut at = 0_usize;
    loop {
        for node in redis.nodes() {
            let mut admin = node.admin().await;
            let keys: Vec<String> =
                cmd("KEYS").arg("rel:*:*:*:*").query_async(&mut admin).await.unwrap();
            at += 1;
            if let Some(key) = keys.get(at * 7 % keys.len().max(1)) {
                cmd("DEL").arg(key).exec_async(&mut admin).await.unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

async fn run(topology: Topology, runs: usize) {
    let system = System::start(topology).await;
    let clients = [system.client.clone(), system.another(&[]).await];
    let mut runner = TestRunner::default();
    for run in 0..runs as u64 {
        let user = |n: u64| id(100 * (run + 1) + n);
        let [followed, fans] = [50_000, 60_000].map(|from| move |n| id(from + n));
        let others = (0..USERS).flat_map(|own| (0..OTHERS).map(move |n| (own, n)));
        let others = others.flat_map(|(own, n)| [(user(own), followed(n)), (fans(n), user(own))]);
        system.import(&others.collect::<Vec<_>>()).await;
        let mut pairs = Vec::new();
        for first in 0..USERS {
            for second in first + 1..USERS {
                let actions = actions().new_tree(&mut runner).unwrap().current();
                pairs.push(([first, second], actions));
            }
        }
        let lanes = pairs.into_iter().map(|(at, actions)| {
            let lane = pair(clients.clone(), at.map(user), actions);
            async move { (at, tokio::spawn(lane).await.unwrap()) }
        });
        let lanes = futures::future::join_all(lanes);
        let sides = tokio::select! {
            sides = lanes => sides,
            () = lose_keys(&system.redis) => unreachable!(),
        };
        for own in 0..USERS {
            let peers = |is: fn(Side, Side) -> bool| -> BTreeSet<u64> {
                let of_pair = |([first, second], [a, b]): &([u64; 2], [Side; 2])| match own {
                    own if own == *first => is(*a, *b).then_some(user(*second)),
                    own if own == *second => is(*b, *a).then_some(user(*first)),
                    _ => None,
                };
                sides.iter().filter_map(of_pair).collect()
            };
            let mut following = peers(|own, _| own.follows);
            let mut followers = peers(|_, other| other.follows);
            following.extend((0..OTHERS).map(followed));
            followers.extend((0..OTHERS).map(fans));
            let mutuals = peers(|own, other| own.follows && other.follows);
            let lengths = [&following, &followers, &mutuals].map(|list| list.len() as u64);
            assert_eq!(<[u64; 3]>::from(system.counts(user(own)).await), lengths);
            for (list, expected) in [
                (EdgeList::Following, following),
                (EdgeList::Followers, followers),
                (EdgeList::Mutuals, mutuals),
                (EdgeList::Blocks, peers(|own, _| own.blocks)),
                (EdgeList::Mutes, peers(|own, _| own.mutes)),
            ] {
                let request = match list {
                    EdgeList::Blocks | EdgeList::Mutes => list_for(user(own), list, user(own), 3),
                    _ => list_of(list, user(own), 3),
                };
                let edges = system.list_all(request).await;
                assert!(edges.is_sorted_by(|a, b| a.version > b.version));
                assert_eq!(ids(&edges).into_iter().collect::<BTreeSet<_>>(), expected, "{list:?}");
            }
        }
        system.converges().await;
    }
}

#[tokio::test]
async fn any_interleaving_matches_the_model_on_a_single_server() {
    run(Topology::Single, 4).await;
}

#[tokio::test]
async fn any_interleaving_matches_the_model_on_a_cluster() {
    run(Topology::Cluster, 3).await;
}
