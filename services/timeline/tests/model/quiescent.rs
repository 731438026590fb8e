//! Checks in a quiescent state.

use std::sync::Arc;

use crate::{
    Case, USERS,
    check::{Expected, expected},
    history::{Kind, Span},
    rng::Rng,
    support::pages::Timeline,
};

/// Checks that each timeline is exactly as specified.
pub(crate) async fn all_is_as_expected(case: &Arc<Case>, rng: &mut Rng) -> Result<(), String> {
    for owner in 0..USERS {
        let size = rng.of(&[6, 20, 41, 41, 90, 200, 200, 200]);
        is_as_expected(case, Kind::Home, owner, size).await?;
        is_as_expected(case, rng.of(&[Kind::User, Kind::Friends]), owner, 60).await?;
        let timeline = rng.of(&[Timeline::Home, Timeline::Friends]);
        authors_are_as_expected(case, timeline, owner).await?;
    }
    Ok(())
}

async fn authors_are_as_expected(
    case: &Arc<Case>,
    timeline: Timeline,
    owner: usize,
) -> Result<(), String> {
    let authors = case.authors(timeline, owner).await?;
    let kind = match timeline {
        Timeline::Home => Kind::Home,
        Timeline::Friends => Kind::Friends,
    };
    let mut expected = {
        let mut history = case.history();
        let now = history.tick();
        history.view(kind, owner, Span { begin: now, end: now }).authors()
    };
    expected.sort_unstable();
    if authors == expected {
        return Ok(());
    }
    Err(format!("authors of {timeline:?} of {owner}: {authors:?}, not {expected:?}"))
}

async fn is_as_expected(
    case: &Arc<Case>,
    kind: Kind,
    owner: usize,
    size: usize,
) -> Result<(), String> {
    let (scroll, _) = case.scroll(kind, owner, size, usize::MAX, "").await?;
    let expected = {
        let mut history = case.history();
        let now = history.tick();
        let view = history.view(kind, owner, Span { begin: now, end: now });
        scroll.check(&history, None)?;
        expected(&history, &view)
    };
    if kind == Kind::Home {
        let count = case.count(owner, "").await?;
        if count != expected.len() {
            return Err(format!("{count} posts counted of {}", expected.len()));
        }
    }
    let actual = scroll.pages.iter().flat_map(|page| &page.entries).map(|entry| Expected {
        post: (entry.post_id, entry.author_id, entry.root_id),
        stand_ins: entry.stand_in_ids.clone(),
    });
    let actual: Vec<_> = actual.collect();
    let differ = actual.iter().zip(&expected).find(|(actual, expected)| actual != expected);
    if differ.is_some() || actual.len() != expected.len() {
        let (actual_count, count) = (actual.len(), expected.len());
        return Err(format!(
            "{kind:?} of {owner} with pages of {size}: {actual_count} posts of {count}, first \
             difference (actual, expected): {differ:?}"
        ));
    }
    Ok(())
}
