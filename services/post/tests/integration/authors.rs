//! Merged lists of several authors, and an author's list below a cursor.

use microblog_proto::post as pb;
use microblog_testkit::Topology::{self, Cluster, Single};

use crate::support::{System, id, lists::ids, names_fields};

/// Reads all posts of authors in pages.
async fn whole(system: &System, author_ids: &[u64], page_size: i32) -> Vec<u64> {
    let (mut whole, mut before_id) = (Vec::new(), 0);
    loop {
        let author_ids = author_ids.to_vec();
        let request =
            pb::ListAuthorsPostsRequest { author_ids, page_size, before_id, ..Default::default() };
        let page = system.client.clone().list_authors_posts(request).await.unwrap().into_inner();
        assert!(page.posts.len() <= page_size as usize);
        whole.extend(ids(&page.posts));
        if page.next_before_id == 0 {
            return whole;
        }
        before_id = page.next_before_id;
    }
}

async fn authors_are_merged(topology: Topology) {
    let system = System::start(topology).await;
    let mut made = Vec::new();
    for round in 0..7 {
        for author in 1..=3 {
            made.push(system.create(id(author), &format!("post {round}")).await.unwrap().id);
        }
    }
    system.create(id(9), "of somebody else").await.unwrap();
    made.sort_unstable_by(|a, b| b.cmp(a));
    let authors = [id(1), id(2), id(3), id(4), id(1)];
    for page_size in [1, 2, 20, 21, 200] {
        assert_eq!(whole(&system, &authors, page_size).await, made, "pages of {page_size}");
    }
    assert!(whole(&system, &[], 5).await.is_empty());
    assert!(whole(&system, &[id(4)], 5).await.is_empty());
    // A deleted post leaves no gap.
    let gone = made.remove(3);
    let author = system.get(gone, 0).await.unwrap().author_id;
    system.delete(author, gone).await.unwrap();
    assert_eq!(whole(&system, &authors, 2).await, made);
}

#[tokio::test]
async fn authors_are_merged_on_a_single_server() {
    authors_are_merged(Single).await;
}

#[tokio::test]
async fn authors_are_merged_on_a_cluster() {
    authors_are_merged(Cluster).await;
}

#[tokio::test]
async fn a_merged_list_ends_above_a_post() {
    let system = System::start(Single).await;
    let mut made = Vec::new();
    for n in 0..8 {
        made.push(system.create(id(1 + n % 2), &format!("post {n}")).await.unwrap().id);
    }
    made.sort_unstable_by(|a, b| b.cmp(a));
    let page = async |before_id, after_id, page_size| {
        let author_ids = vec![id(1), id(2)];
        let request = pb::ListAuthorsPostsRequest {
            author_ids,
            viewer_id: 0,
            page_size,
            before_id,
            after_id,
        };
        let page = system.client.clone().list_authors_posts(request).await.unwrap().into_inner();
        (ids(&page.posts), page.next_before_id)
    };
    assert_eq!(page(0, made[5], 20).await, (made[..5].to_vec(), 0));
    assert_eq!(page(0, made[5], 5).await, (made[..5].to_vec(), 0), "as many as there are");
    assert_eq!(page(0, made[5], 4).await, (made[..4].to_vec(), made[3]));
    assert_eq!(page(made[3], made[5], 4).await, (vec![made[4]], 0));
    for after in [made[0], made[0] + 1] {
        assert_eq!(page(0, after, 20).await, (Vec::new(), 0), "no post is newer");
    }
    assert_eq!(page(made[6], made[2], 20).await, (Vec::new(), 0), "no post is in between");
}

#[tokio::test]
async fn a_list_begins_below_a_post() {
    let system = System::start(Single).await;
    let mut made = Vec::new();
    for n in 0..6 {
        made.insert(0, system.create(id(1), &format!("post {n}")).await.unwrap().id);
    }
    let page = async |before_id, page_token: &str| {
        let request = pb::ListUserPostsRequest {
            author_id: id(1),
            page_size: 2,
            page_token: page_token.to_owned(),
            before_id,
            ..Default::default()
        };
        let page = system.client.clone().list_user_posts(request).await?.into_inner();
        Ok::<_, tonic::Status>((ids(&page.posts), page.next_page_token))
    };
    let (first, token) = page(made[1], "").await.unwrap();
    assert_eq!(first, made[2..4]);
    let (second, end) = page(made[1], &token).await.unwrap();
    assert_eq!(second, made[4..]);
    assert!(end.is_empty());
    assert!(page(made[5], "").await.unwrap().0.is_empty());
    // A token is valid for its own list only.
    page(made[2], &token).await.unwrap_err();
    names_fields(page(1 << 53, "").await, &["before_id"]);
    let request = pb::ListAuthorsPostsRequest {
        author_ids: vec![0],
        viewer_id: 1 << 53,
        page_size: -1,
        before_id: 1 << 53,
        after_id: 1 << 53,
    };
    let fields = ["viewer_id", "page_size", "before_id", "after_id"];
    names_fields(system.client.clone().list_authors_posts(request).await, &fields);
    let author_ids = vec![0, id(1), 1 << 53];
    let request = pb::ListAuthorsPostsRequest { author_ids, ..Default::default() };
    let found = system.client.clone().list_authors_posts(request).await.unwrap().into_inner();
    assert_eq!(ids(&found.posts).len(), 6);
    let request = pb::ListAuthorsPostsRequest { author_ids: vec![1; 501], ..Default::default() };
    names_fields(system.client.clone().list_authors_posts(request).await, &["author_ids"]);
}
