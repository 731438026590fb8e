//! Hydration of mentions: the accounts that the names in texts refer to (see `microblog_domain::mention`).

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    iter,
};

use microblog_domain::{BATCH_MAX, mention::is_no_younger};
use microblog_proto::{
    post::{Entity, Mention, entity::Target},
    user,
};
use tonic::Status;

use crate::{errors, state::Gateway};

/// The accounts that mentioned names refer to.
#[derive(Debug, Default)]
pub(crate) struct Mentioned(HashMap<String, u64>);

impl Mentioned {
    /// Returns the accounts of names from a service's response.
    pub(crate) fn new(named: Vec<user::NamedUser>) -> Self {
        Self(named.into_iter().map(|named| (named.name, named.user_id)).collect())
    }

    /// Sets the account ids in the mentions of the text with this id.
    pub(crate) fn fill(&self, text_id: u64, entities: &mut [Entity]) {
        for entity in entities {
            if let Some(Target::Mention(mention)) = &mut entity.target {
                let user_id = self.0.get(normalized(mention).as_ref()).copied();
                let user_id = user_id.filter(|&id| is_no_younger(id, text_id));
                mention.user_id = user_id.unwrap_or_default();
            }
        }
    }
}

/// Resolves the mentions of a text that was just written. One call: user.BatchResolveNames; none
/// without mentions. Its errors leave the outcome open: the text is written, and the caller may retry.
pub(crate) async fn fill_mentions(
    gateway: &Gateway,
    text_id: u64,
    entities: &mut [Entity],
) -> Result<(), Status> {
    let names = mentioned_names(iter::once(&*entities));
    if names.is_empty() {
        return Ok(());
    }
    let request = user::BatchResolveNamesRequest { names };
    let response = gateway.peers.user().batch_resolve_names(request).await;
    let response = errors::reply(response, &[]).map_err(errors::after_write)?;
    Mentioned::new(response.users).fill(text_id, entities);
    Ok(())
}

/// Returns the distinct names that texts mention, at most [`BATCH_MAX`], from the first `BATCH_MAX`
/// mentions of each text. The first mentions of all texts come before the second ones, so a text
/// with hundreds of mentions does not displace those of its neighbours.
pub(crate) fn mentioned_names<'a>(texts: impl Iterator<Item = &'a [Entity]>) -> Vec<String> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    let mut texts: Vec<_> =
        texts.map(|entities| entities.iter().filter_map(mention).take(BATCH_MAX)).collect();
    while names.len() < BATCH_MAX && !texts.is_empty() {
        texts.retain_mut(|mentions| {
            let Some(name) = mentions.next().map(normalized) else { return false };
            if names.len() < BATCH_MAX && !seen.contains(&name) {
                names.push(name.to_string());
                seen.insert(name);
            }
            true
        });
    }
    names
}

fn mention(entity: &Entity) -> Option<&Mention> {
    match &entity.target {
        Some(Target::Mention(mention)) => Some(mention),
        Some(Target::Hashtag(_)) | None => None,
    }
}

/// Returns the normalized name.
fn normalized(mention: &Mention) -> Cow<'_, str> {
    if mention.name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(mention.name.to_ascii_lowercase());
    }
    Cow::Borrowed(&mention.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mention_of(name: &str) -> Entity {
        let mention = Mention { name: name.to_owned(), user_id: 0 };
        Entity { target: Some(Target::Mention(mention)), ..Entity::default() }
    }

    fn text(names: &[&str]) -> Vec<Entity> {
        names.iter().map(|name| mention_of(name)).collect()
    }

    fn names(texts: &[Vec<Entity>]) -> Vec<String> {
        mentioned_names(texts.iter().map(Vec::as_slice))
    }

    #[test]
    fn each_name_is_resolved_once_whatever_its_case() {
        let texts = [text(&["Ann", "bob", "ANN"]), text(&["aNN", "cleo"])];
        assert_eq!(names(&texts), ["ann", "bob", "cleo"]);
    }

    #[test]
    fn a_text_with_many_mentions_does_not_displace_others() {
        let many: Vec<String> = (0..600).map(|i| format!("n{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let names = names(&[text(&many), text(&["ann", "bob"])]);
        assert_eq!(names.len(), BATCH_MAX);
        assert_eq!(names[..4], ["n0", "ann", "n1", "bob"]);
    }

    #[test]
    fn repeated_names_take_no_room_and_bounded_work() {
        let repeated: Vec<&str> = [&["ann"; BATCH_MAX][..], &["bob"]].concat();
        assert_eq!(names(&[text(&repeated), text(&["cleo"])]), ["ann", "cleo"]);
    }

    #[test]
    fn mentions_are_filled_whatever_their_case() {
        let mut entities = vec![Entity::default(), mention_of("Ann"), mention_of("eve")];
        Mentioned([("ann".to_owned(), 1), ("bob".to_owned(), 2)].into())
            .fill(7 << 12, &mut entities);
        let ids = entities.iter().map(|entity| mention(entity).map(|mention| mention.user_id));
        assert_eq!(ids.collect::<Vec<_>>(), [None, Some(1), Some(0)]);
    }

    #[test]
    fn a_mention_does_not_refer_to_a_younger_account() {
        let at = |ms: u64| (ms << 12) | (3 << 2);
        let meant = |account: u64, text: u64| {
            let mut entities = [mention_of("ann")];
            // In another partition, whose stamps of the same time are larger.
            let id = at(account) | (9 << 2);
            Mentioned([("ann".to_owned(), id)].into()).fill(at(text), &mut entities);
            mention(&entities[0]).unwrap().user_id == id
        };
        assert!(meant(5, 6) && meant(5, 5));
        assert!(!meant(6, 5) && !meant(500, 5));
    }
}
