//! Hydration of mentions: the accounts that the names in texts refer to.
//!
//! A text contains names, which are resolved when the text is read. Since then a name may have
//! passed to another account, so a mention refers to an account only if the account is older than
//! the text. Names cannot be changed: the owner at the time of writing has had the name since
//! registration, and a later owner is younger. Ids contain their time of creation, so nothing needs
//! to be stored. (An id is issued some milliseconds before its name is claimed. That matters only
//! if names of deleted accounts become free at once.)

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use microblog_domain::{BATCH_MAX, Stamp};
use microblog_proto::{
    post::{Comment, Entity, Mention, Post, entity::Target},
    user,
};
use tonic::Status;

use crate::{errors, state::Gateway};

/// A message with texts whose mentions and hashtags are parsed.
pub(crate) trait Text {
    /// Returns the entities of each text: its own, and that of its root.
    fn texts(&self) -> impl Iterator<Item = &[Entity]>;
    /// Returns the same, mutable, each with the id of its post or comment.
    fn texts_mut(&mut self) -> impl Iterator<Item = (u64, &mut [Entity])>;
}

impl Text for Post {
    fn texts(&self) -> impl Iterator<Item = &[Entity]> {
        let root = self.root.iter().map(|root| root.entities.as_slice());
        std::iter::once(self.entities.as_slice()).chain(root)
    }

    fn texts_mut(&mut self) -> impl Iterator<Item = (u64, &mut [Entity])> {
        let root = self.root.iter_mut().map(|root| (root.id, root.entities.as_mut_slice()));
        std::iter::once((self.id, self.entities.as_mut_slice())).chain(root)
    }
}

impl Text for Comment {
    fn texts(&self) -> impl Iterator<Item = &[Entity]> {
        std::iter::once(self.entities.as_slice())
    }

    fn texts_mut(&mut self) -> impl Iterator<Item = (u64, &mut [Entity])> {
        std::iter::once((self.id, self.entities.as_mut_slice()))
    }
}

/// The accounts that mentioned names refer to.
#[derive(Debug, Default)]
pub(crate) struct Mentioned(HashMap<String, u64>);

impl Mentioned {
    /// Sets the account ids in the mentions of a message.
    pub(crate) fn fill(&self, text: &mut impl Text) {
        for (text_id, entities) in text.texts_mut() {
            for entity in entities {
                if let Some(Target::Mention(mention)) = &mut entity.target {
                    let user_id = self.0.get(normalized(mention).as_ref()).copied();
                    let user_id = user_id.filter(|&id| is_no_younger(id, text_id));
                    mention.user_id = user_id.unwrap_or_default();
                }
            }
        }
    }
}

/// Returns whether an account existed when a text was written, to the millisecond. The clocks of
/// two partitions may differ like those of two machines, so an account created just before may
/// count as younger. Its mention then refers to no account, rather than to the wrong account.
fn is_no_younger(user_id: u64, text_id: u64) -> bool {
    let made = |id: u64| Stamp::new(id).map(Stamp::time);
    made(user_id).zip(made(text_id)).is_some_and(|(account, text)| account <= text)
}

/// Resolves the names that texts mention, as many as [`names`] returns. One call:
/// user.BatchResolveNames; none without mentions.
pub(crate) async fn resolve_mentions<T: Text>(
    gateway: &Gateway,
    texts: &[T],
) -> Result<Mentioned, Status> {
    let names = names(texts);
    if names.is_empty() {
        return Ok(Mentioned::default());
    }
    let request = user::BatchResolveNamesRequest { names };
    let response = gateway.peers.user().batch_resolve_names(request).await;
    let users = errors::reply(response, &[])?.users;
    Ok(Mentioned(users.into_iter().map(|named| (named.name, named.user_id)).collect()))
}

/// Returns a message that was just written with its mentions resolved. The calls of
/// [`resolve_mentions`]. Their errors leave the outcome open: the message is written, and the
/// caller may retry.
pub(crate) async fn with_mentions<T: Text>(gateway: &Gateway, mut text: T) -> Result<T, Status> {
    let mentioned = resolve_mentions(gateway, std::slice::from_ref(&text)).await;
    mentioned.map_err(errors::after_write)?.fill(&mut text);
    Ok(text)
}

/// Returns the distinct names that texts mention, at most [`BATCH_MAX`], from the first `BATCH_MAX`
/// mentions of each text. The first mentions of all texts come before the second ones, so a text
/// with hundreds of mentions does not displace those of its neighbours.
fn names<T: Text>(texts: &[T]) -> Vec<String> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    let mut texts: Vec<_> = texts
        .iter()
        .flat_map(Text::texts)
        .map(|entities| entities.iter().filter_map(mention).take(BATCH_MAX))
        .collect();
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

    fn comment(names: &[&str]) -> Comment {
        Comment {
            entities: names.iter().map(|name| mention_of(name)).collect(),
            ..Comment::default()
        }
    }

    #[test]
    fn each_name_is_resolved_once_whatever_its_case() {
        let texts = [comment(&["Ann", "bob", "ANN"]), comment(&["aNN", "cleo"])];
        assert_eq!(names(&texts), ["ann", "bob", "cleo"]);
    }

    #[test]
    fn a_text_with_many_mentions_does_not_displace_others() {
        let many: Vec<String> = (0..600).map(|i| format!("n{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let names = names(&[comment(&many), comment(&["ann", "bob"])]);
        assert_eq!(names.len(), BATCH_MAX);
        assert_eq!(names[..4], ["n0", "ann", "n1", "bob"]);
    }

    #[test]
    fn repeated_names_take_no_room_and_bounded_work() {
        let repeated: Vec<&str> = [&["ann"; BATCH_MAX][..], &["bob"]].concat();
        assert_eq!(names(&[comment(&repeated), comment(&["cleo"])]), ["ann", "cleo"]);
    }

    #[test]
    fn mentions_are_filled_in_a_post_and_its_root() {
        let at = |ms: u64| ms << 12;
        let root = Post {
            id: at(5),
            entities: vec![mention_of("BOB"), mention_of("eve")],
            ..Post::default()
        };
        let (id, entities) = (at(7), vec![Entity::default(), mention_of("Ann")]);
        let mut post = Post { id, entities, root: Some(Box::new(root)), ..Post::default() };
        Mentioned([("ann".to_owned(), 1), ("bob".to_owned(), 2)].into()).fill(&mut post);
        let ids = |entities: &[Entity]| {
            let id = |entity| mention(entity).map(|mention| mention.user_id);
            entities.iter().map(id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&post.entities), [None, Some(1)]);
        assert_eq!(ids(&post.root.unwrap().entities), [Some(2), Some(0)]);
    }

    #[test]
    fn a_mention_does_not_refer_to_a_younger_account() {
        let at = |ms: u64| (ms << 12) | (3 << 2);
        let meant = |account: u64, text: u64| {
            let mut comment = Comment { id: at(text), ..comment(&["ann"]) };
            // In another partition, whose stamps of the same time are larger.
            let id = at(account) | (9 << 2);
            Mentioned([("ann".to_owned(), id)].into()).fill(&mut comment);
            mention(&comment.entities[0]).unwrap().user_id == id
        };
        assert!(meant(5, 6) && meant(5, 5));
        assert!(!meant(6, 5) && !meant(500, 5));
    }
}
